"""Downloads without the blocks that the agent has: complete again to the last bit, or refused by name."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.algorithms.messages import packed_bytes
from fedbandit.errors import FormatError
from fedbandit.wire import codec
from fedbandit.wire.block_changes import ChangedBlocks, KnownBlocks, checksums, completed, known_of
from tests.sdk.helpers import Way, make_hub, make_live


def model(rng: np.random.Generator, K: int, p: int, n: int) -> fb.SufficientStats:
    places = rng.integers(K, size=n)
    stats = fb.SufficientStats.of_blocks(places, rng.standard_normal((n, p)), rng.standard_normal(n), K)
    return fb.SufficientStats.prior(dim=K * p, lam=1.0, blocks=K) + stats


def shortened(before: fb.SufficientStats, after: fb.SufficientStats) -> tuple[codec.SyncReply, codec.SyncReply]:
    """The reply to an agent that holds `before`, whole and as it travels."""
    K, p = after.blocks, after.dim // after.blocks
    whole = codec.reply_of(fb.Download("a", 3, after, 1))
    short = ChangedBlocks(packed_bytes(after), p, K).shortened(whole, checksums(packed_bytes(before), p, K))
    return whole, codec.decode_reply(codec.encode(short))


@given(seed=st.integers(0, 999), K=st.integers(2, 30), p=st.integers(1, 4), n=st.integers(0, 12))
def test_what_is_left_out_and_put_back_is_the_same_to_the_last_bit(seed, K, p, n):
    rng = np.random.default_rng(seed)
    before = model(rng, K, p, 10)
    places = rng.integers(K, size=n)
    after = before + fb.SufficientStats.of_blocks(places, rng.standard_normal((n, p)), rng.standard_normal(n), K)
    whole, short = shortened(before, after)
    assert len(codec.encode(short)) <= len(codec.encode(whole))
    if short.changed is not msgspec.UNSET:
        assert np.frombuffer(short.changed, "<u4").tolist() == np.unique(places).tolist()
    assert completed(short, packed_bytes(before)) == whole


def test_blocks_of_another_model_are_noticed_and_all_are_asked_for_then():
    rng = np.random.default_rng(0)
    before, after, other = (model(rng, 8, 3, 10) for _ in range(3))
    mixed = fb.SufficientStats(np.concatenate([before.Sigma[:4], after.Sigma[4:]]), after.b, after.n_obs)
    _, short = shortened(mixed, after)
    for held in (None, packed_bytes(other), packed_bytes(model(rng, 7, 3, 10))):
        with pytest.raises(FormatError):
            completed(short, held)
    request, known = codec.request_of(fb.Upload("a", "one", 1, after, 0.5)), KnownBlocks()
    assert known_of(known.named_in(request, other)) != b""
    with pytest.raises(FormatError):
        known.completed(short)
    assert known_of(known.named_in(request, other)) == b""
    whole = codec.reply_of(fb.Download("a", 3, after, 1))
    assert known.completed(whole) == whole
    assert known_of(known.named_in(request, other)) != b""


@pytest.mark.parametrize(
    "change",
    [
        {"changed": b"\x00\x00\x00"},
        {"changed": np.array([3, 1], "<u4").tobytes()},
        {"changed": np.array([99], "<u4").tobytes()},
        {"changed": np.arange(20, dtype="<u4").tobytes()},
        {"stats": b""},
    ],
)
def test_malformed_changes_are_refused(change):
    rng = np.random.default_rng(0)
    before = model(rng, 8, 3, 10)
    _, short = shortened(before, before)
    with pytest.raises(FormatError):
        codec.decode_reply(codec.encode(msgspec.structs.replace(short, **change)))


def test_checksums_of_another_length_are_refused_in_a_request_and_ignored_by_a_reply():
    rng = np.random.default_rng(0)
    stats = model(rng, 8, 3, 10)
    request = codec.request_of(fb.Upload("a", "one", 1, stats, 0.5))
    with pytest.raises(FormatError, match="known"):
        codec.decode_request(codec.encode(msgspec.structs.replace(request, known=b"1234")))
    reply = codec.reply_of(fb.Download("a", 3, stats, 1))
    assert ChangedBlocks(packed_bytes(stats), 3, 8).shortened(reply, b"1234") is reply


def test_a_live_agent_gets_the_blocks_that_changed_and_has_the_whole_model():
    hub = make_hub(dim=600, blocks=200, alpha=0.3)
    rng, way = np.random.default_rng(0), Way(hub, "a")
    with make_live(way, sync="inline") as agent, make_live(Way(hub, "b"), sync="inline") as other:
        for turn in range(40):
            who = agent if turn % 2 else other
            who.observe(who.choose_context(rng.standard_normal(2)), float(rng.standard_normal()))
        agent.flush()
        assert agent.model.stats == hub.server.stats
        status = agent.status()
        full = 8 * (200 * (6 + 3) + 3)
        assert status.exchanges > 5
        assert status.bytes_received < full + status.exchanges * full / 4


class Forgetful(Way):
    """Answers with changes to a model that the agent does not hold."""

    def sync(self, body, *, timeout_s):
        request = codec.decode_request(body)
        if known_of(request):
            stats = packed_bytes(self.inner._hub.server.stats)
            request = msgspec.structs.replace(request, known=checksums(stats, 3, 10))  # "you have all of it"
        return super().sync(codec.encode(request), timeout_s=timeout_s)


def test_a_wrong_answer_costs_one_retry_and_nothing_else():
    hub = make_hub(dim=30, blocks=10, alpha=0.0)
    rng = np.random.default_rng(0)
    with make_live(Forgetful(hub), sync="inline") as agent:
        for _ in range(10):
            agent.observe(agent.choose_context(rng.standard_normal(2)), 1.0)
            agent.flush()
        assert hub.server.stats.n_obs == 10
        assert agent.model.stats == hub.server.stats
