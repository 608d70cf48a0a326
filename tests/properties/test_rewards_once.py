"""Over random orders of everything that owner, reporters and operator do: one decision is at most one observation.

Decision i has the i-th unit vector as its only action, so the diagonal of the model's Σ counts its observations.
"""

import asyncio
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import packed_bytes, stats_from_bytes
from fedbandit.core.plausibility import require_plausible
from fedbandit.core.radius import Fixed
from fedbandit.errors import AlreadyObserved, FedbanditError, LiveError, NotCorrectable, Refused
from fedbandit.sdk import open_agent
from fedbandit.sdk.in_process import LocalServer
from fedbandit.sdk.reward_collection import CollectedRewards
from fedbandit.sdk.transport import TransportReply
from fedbandit.service.admin.rewards import _read
from fedbandit.service.exchange.ledger import IncomingUpload
from fedbandit.service.stores.memory import MemoryStore
from fedbandit.service.stores.rewards import Report
from fedbandit.wire import codec
from fedbandit.wire.decision_token import token_key
from fedbandit.wire.settings import ModelDescription, ModelSettings

DIM, LAM = 3, 1.0
SETTINGS = ModelSettings(name="news", dim=DIM, lam=LAM, alpha=1e6, radius=Fixed(0.5))


class StoreTransport:
    """The way of one agent to a store in this process, with the server's own code and no HTTP."""

    address = "the store"

    def __init__(self, store: MemoryStore, agent: str) -> None:
        self.store, self.agent, self.n_rewards = store, agent, 0

    def _run(self, work):
        try:
            return asyncio.run(work)
        except FedbanditError as error:
            raise Refused(str(error), reason=error.code, status=409) from None

    def _require_token(self) -> None:
        who = self._run(self.store.find_token(self.agent.encode()))
        if who is None or who.revoked:
            raise Refused("no", reason="retired", status=401)

    def describe(self, *, timeout_s):
        return ModelDescription(SETTINGS, "1", self.agent).to_dict()

    def sync(self, body, *, timeout_s):
        request = codec.decode_request(body)
        numbers = codec.numbers_of(request)
        require_plausible(numbers, DIM, SETTINGS.bounds)
        upload = IncomingUpload(
            self.agent, request.incarnation, request.sequence, request.digest, numbers, 0.0, self.agent.encode()
        )
        merged = self._run(self.store.merge("news", [upload], now=0.0))
        if isinstance(merged.outcomes[0], FedbanditError):
            raise Refused(str(merged.outcomes[0]), reason=merged.outcomes[0].code, status=409)
        return self._reply(merged.model, merged.packed, merged.outcomes[0].sequence)

    def state(self, incarnation, tag, *, timeout_s):
        self._require_token()
        found = self._run(self.store.state("news"))
        agent = self._run(self.store.agent("news", self.agent))
        return self._reply(found.model, found.packed, agent.sequence if agent.incarnation == incarnation else 0)

    def _reply(self, model, packed, acknowledged):
        self.n_rewards = model.n_rewards
        reply = codec.SyncReply(
            agent=self.agent, version=model.version, acknowledged=acknowledged, dim=DIM, stats=packed, settings="1"
        )
        return TransportReply(reply, None, 0)

    def collect(self, prefix, answers, *, timeout_s):
        self._require_token()
        found = self._run(self.store.collect("news", self.agent, prefix, answers, now=0.0))
        return CollectedRewards(found.rewards, token_key(self._run(self.store.token_secret("news")), self.agent))

    def report(self, decision, reward, *, timeout_s):
        report = _read(SETTINGS, self._run(self.store.token_secret("news")), decision, reward)
        assert isinstance(report, Report)
        report = report._replace(token=report.token and report.token._replace(made_at=0.0))
        ((outcome,), _) = self._run(self.store.report("news", [report], now=0.0))
        if isinstance(outcome, FedbanditError):
            raise Refused(str(outcome), reason=outcome.code, status=409)
        return {"status": outcome}

    def close(self):
        pass


class World:
    """An owner with a state directory, another worker, a store, and what each was told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, MemoryStore()
        asyncio.run(self._make())
        self.owner, self.other = (
            self.opened(),
            open_agent(StoreTransport(self.store, "other"), model="news", sync="inline"),
        )
        self.ids: list[str] = []
        self.decisions = []
        self.tokens: dict[int, str] = {}
        self.told: dict[int, float] = {}  # decision -> reward that somebody was told counts
        self.reported: dict[int, float] = {}

    async def _make(self):
        await self.store.create(SETTINGS, uid="news", now=0.0)
        for agent in ("owner", "other"):
            await self.store.enroll("news", agent, agent.encode(), now=0.0)

    def opened(self):
        return open_agent(StoreTransport(self.store, "owner"), model="news", sync="inline", state_dir=self.folder / "s")

    def choose(self, i, reward):
        if len(self.ids) < DIM:
            row = np.eye(DIM)[len(self.ids)]
            decision = self.owner.choose([row])
            self.ids.append(decision.id)
            self.decisions.append(decision)

    def observe(self, i, reward):
        with suppress(AlreadyObserved):
            self.owner.observe(self.decisions[i], reward)
            self.told[i] = reward

    def correct(self, i, reward):
        with suppress(NotCorrectable):
            self.owner.observe(None, reward, replaces=self.ids[i])
            self.told[i] = reward

    def settle(self, i, reward):
        pending = {decision.id for decision in self.owner.pending}
        self.owner.pending.settle(reward)
        self.told.update({self.ids.index(name): reward for name in pending})

    def expire(self, i, reward):
        with suppress(AlreadyObserved):
            self.owner.expire(self.decisions[i])

    def token(self, i, reward):
        with suppress(AlreadyObserved):
            self.tokens[i] = self.owner.token(self.decisions[i])

    def report(self, i, reward):
        self._reported(i, self.ids[i], reward)

    def report_token(self, i, reward):
        if i in self.tokens:
            self._reported(i, self.tokens[i], reward)

    def _reported(self, i, name, reward):
        with suppress(Refused):
            status = self.other.report(name, reward)
            self.reported[i] = reward
            if status == "booked":
                self.told.setdefault(i, reward)

    def refresh(self, i, reward):
        self.owner.refresh()

    def flush(self, i, reward):
        self.owner.flush()

    def restart(self, i, reward):
        self.owner.close()
        self.owner = self.opened()

    def kill(self, i, reward):
        """The next process finds what the files hold now; this one goes on without them."""
        copy = Path(tempfile.mkdtemp(dir=self.folder)) / "s"
        shutil.copytree(self.folder / "s", copy)
        self.owner._finalizer.detach()
        self.owner._durable.journal.close()
        shutil.rmtree(self.folder / "s")
        copy.rename(self.folder / "s")
        self.owner = self.opened()

    def counts(self):
        packed = asyncio.run(self.store.state("news")).packed
        stats = stats_from_bytes(packed, DIM)
        return np.diag(stats.Sigma) - LAM, stats.b


STEPS = [
    "observe",
    "correct",
    "settle",
    "expire",
    "token",
    "report",
    "report_token",
    "refresh",
    "flush",
    "restart",
    "kill",
]
HISTORIES = st.lists(
    st.tuples(
        st.sampled_from(["choose", "token", "report_token", *STEPS]),
        st.integers(0, DIM - 1),
        st.sampled_from([0.0, 1.0]),
    ),
    min_size=15,
    max_size=40,
)


@settings(max_examples=20)
@given(HISTORIES)
def test_one_decision_is_at_most_one_observation_in_every_order(history):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for step, i, reward in [("choose", 0, 0.0)] * 2 + history:
            getattr(world, step)(i % max(len(world.ids), 1), reward)
        world.owner.refresh()
        world.owner.flush()
        counts, b = world.counts()
        assert set(counts.tolist()) <= {0.0, 1.0}, "no decision counts twice"
        for i, reward in world.told.items():
            assert counts[i] == 1.0, "whoever was told that it counts was told the truth"
            if i not in world.reported:
                assert b[i] == reward
        for i, reward in world.reported.items():
            with suppress(LiveError):
                assert world.other.report(world.ids[i], reward) != "booked" or counts[i] == 1.0
        assert (asyncio.run(world.store.load("news"))).n_rewards == 0, "everything was collected"
        world.owner.close()
        world.other.close()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-1e3, 1e3)), min_size=1, max_size=20), st.booleans())
def test_a_corrected_buffer_is_what_the_last_rewards_would_have_given(corrections, has_a_row):
    """Bit by bit where all observations are known; with a row that no decision chose, up to rounding, and plausible."""
    rule = FedLinUCB(dim=3, alpha=1e6, beta=0.5)
    rng = np.random.default_rng(1)
    hub, other = LocalServer(rule), LocalServer(rule)
    with (
        open_agent(hub.transport("a"), model="local", sync="inline") as agent,
        open_agent(other.transport("a"), model="local", sync="inline") as plain,
    ):
        decisions = [agent.choose(rng.normal(size=(2, 3))) for _ in range(6)]
        if has_a_row:
            agent.observe([1.0, 2.0, 3.0], 0.0)
            plain.observe([1.0, 2.0, 3.0], 0.0)
        rewards = {}
        for i, reward in corrections:
            agent.observe(decisions[i], reward, replaces=decisions[i].id if i in rewards else None)
            rewards[i] = reward
        for i, reward in rewards.items():
            plain.observe(decisions[i].x, reward)
        found, expected = (packed_bytes(item._durable.agent.local) for item in (agent, plain))
        if has_a_row:
            scale = max(abs(reward) for _, reward in corrections) + 1.0
            assert np.allclose(np.frombuffer(found), np.frombuffer(expected), rtol=1e-9, atol=1e-9 * scale * scale)
        else:
            assert found == expected
        require_plausible(np.frombuffer(found, dtype="<f8"), 3, SETTINGS.bounds)
        agent.flush()
    assert hub.server.stats.n_obs == len(rewards) + has_a_row
