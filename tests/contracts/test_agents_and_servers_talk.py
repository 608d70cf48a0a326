"""What passes between every agent and its server: uploads count once, and everything can be saved."""

import json
import pickle

import msgspec
import numpy as np
import pandas as pd
import pytest

import fedbandit as fb
from fedbandit import errors
from fedbandit.algorithms.catalog import rule_from_dict
from fedbandit.algorithms.rules import deliberate_radius
from fedbandit.simulation.runner import SimulatedFleet
from tests.builders import RULE_NAMES, UPLOADING, make_rule, play, play_round, rows, state_of, stats_of

every_rule = pytest.mark.parametrize("name", RULE_NAMES)
uploading_rule = pytest.mark.parametrize("name", UPLOADING)


def upload_of(agent):
    """Observe until the agent wants to upload."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        upload = agent.observe(rng.standard_normal(agent.dim), float(rng.standard_normal()))
        if upload is not None:
            return upload
    raise AssertionError("the agent never wanted to upload")


@uploading_rule
def test_the_upload_of_an_unanswered_exchange_is_kept_and_stays_identical(name):
    agent = make_rule(name).agent("a")
    upload = upload_of(agent)
    assert agent.in_flight is upload and upload.sequence == 1
    content = upload.digest()
    for seed in range(20):
        assert agent.observe(rows(1, seed=seed)[0], 1.0) is None, "one exchange at a time"
    assert agent.in_flight is upload and upload.digest() == content
    assert agent.local.n_obs == 20


@uploading_rule
def test_an_upload_received_twice_counts_once(name):
    rule = make_rule(name)
    server, agent = rule.server(), rule.agent("a")
    upload = upload_of(agent)
    server.receive(upload)
    merged, version = server.stats, server.version
    again = server.receive(upload)
    assert server.stats == merged and server.version == version == 1
    assert merged.n_obs == upload.stats.n_obs
    agent.adopt(again)
    assert agent.in_flight is None


@uploading_rule
def test_what_was_seen_while_an_exchange_was_under_way_starts_the_next_upload(name):
    rule = make_rule(name)
    server, agent = rule.server(), rule.agent("a")
    first = upload_of(agent)
    seen = [(x, 1.0) for x in rows(50, seed=5)]
    for x, reward in seen:
        agent.observe(x, reward)
    second = agent.adopt(server.receive(first))
    if second is None:  # an answer without a model: the next observation finds the buffer due
        seen.append((np.ones(3), 1.0))
        second = agent.observe(np.ones(3), 1.0)
    assert second is not None and second.sequence == 2
    assert second.stats == stats_of(seen, 3) or np.allclose(second.stats.Sigma, stats_of(seen, 3).Sigma)
    assert agent.local.n_obs == 0


@uploading_rule
def test_a_gap_a_conflict_and_a_stale_life_are_refused_and_change_nothing(name):
    rule = make_rule(name)
    server = rule.server()
    server.enroll(["a"])
    agent = rule.agent("a", incarnation="first")
    first = upload_of(agent)
    server.receive(first)

    def upload(**changes):
        values = {"agent_id": "a", "incarnation": "first", "sequence": 2, "stats": first.stats, "growth": 0.1}
        return fb.Upload(**{**values, **changes})

    before = state_of(server)
    other = fb.SufficientStats.of(rows(2, seed=9), [1.0, 2.0])
    for message, error in (
        (upload(sequence=3), errors.SequenceGap),
        (upload(sequence=0), errors.SequenceGap),
        (upload(sequence=1, stats=other), errors.SequenceConflict),
        (upload(incarnation="second", sequence=2), errors.SequenceGap),
    ):
        with pytest.raises(error):
            server.receive(message)
        assert state_of(server) == before
    server.receive(upload(incarnation="second", sequence=1, stats=other))
    before = state_of(server)
    with pytest.raises(errors.StaleIncarnation, match="new life"):
        server.receive(upload())
    assert state_of(server) == before


@uploading_rule
def test_an_upload_that_cannot_be_added_is_refused_and_changes_nothing(name):
    server = play(make_rule(name), 20).server
    before = state_of(server)
    good = fb.SufficientStats.of(rows(2), [1.0, 2.0])
    nan = fb.SufficientStats(good.Sigma * np.nan, good.b, 2)
    infinite = fb.SufficientStats(good.Sigma, good.b, 2, np.inf)
    negative = fb.SufficientStats(good.Sigma, good.b, -1)
    for stats, error in (
        (fb.SufficientStats.of(rows(2, 4), [1.0, 2.0]), errors.DimensionMismatch),
        (nan, errors.NotFinite),
        (infinite, errors.NotFinite),
        (negative, errors.InvalidInput),
    ):
        with pytest.raises(error):
            server.receive(fb.Upload("newcomer", "one", 1, stats, 0.1))
    assert state_of(server) == before


@every_rule
def test_a_reply_for_somebody_else_or_of_another_dimension_is_refused_and_changes_nothing(name):
    agent = play(make_rule(name), 20).agent("0")
    before = state_of(agent)
    with pytest.raises(errors.InvalidInput, match="expected a reply for agent '0', got one for 'b'"):
        agent.adopt(fb.Download("b", 99, fb.SufficientStats.prior(dim=3, lam=1.0)))
    with pytest.raises(errors.DimensionMismatch, match="a model with 3 features, got 4"):
        agent.adopt(fb.Download("0", 99, fb.SufficientStats.prior(dim=4, lam=1.0)))
    assert state_of(agent) == before


@uploading_rule
def test_a_late_download_does_not_replace_a_newer_model(name):
    fleet = play(make_rule(name), 60)
    agent = fleet.agent("0")
    assert agent.model_version > 1
    before = agent.predict(np.eye(3))
    agent.adopt(fb.Download("0", agent.model_version - 1, fb.SufficientStats.prior(dim=3, lam=1.0)))
    np.testing.assert_array_equal(agent.predict(np.eye(3)), before)


@uploading_rule
def test_of_several_replies_an_agent_takes_its_own(name):
    rule = make_rule(name)
    agent = rule.agent("a")
    stats = rule.prior + fb.SufficientStats.of(rows(10), np.ones(10))
    agent.adopt((fb.Receipt("b", 3), fb.Download("a", 5, stats), fb.Download("b", 5, rule.prior)))
    assert agent.model_version == 5
    np.testing.assert_allclose(agent.predict(np.eye(3)), np.linalg.solve(stats.Sigma, stats.b))


@every_rule
@pytest.mark.parametrize("way", ["bytes", "pickle"])
@pytest.mark.parametrize("n_before", [0, 3, 60])
def test_a_saved_fleet_continues_with_identical_choices_and_uploads(name, way, n_before):
    def copy(thing):
        return fb.load(thing.to_bytes()) if way == "bytes" else pickle.loads(pickle.dumps(thing))

    original = play(make_rule(name), n_before)
    restored = SimulatedFleet(original.rule, 2)
    restored.server = copy(original.server)
    restored.agents = {key: copy(agent) for key, agent in original.agents.items()}
    rng = np.random.default_rng(1)
    for _ in range(120):
        agent_id, actions = str(rng.integers(2)), rng.standard_normal((5, 3))
        reward = float(rng.standard_normal())
        assert play_round(restored, agent_id, actions, reward) == play_round(original, agent_id, actions, reward)
    assert restored.server.stats == original.server.stats
    for key, agent in original.agents.items():
        assert restored.agents[key].n_rounds == agent.n_rounds
        assert restored.agents[key].n_switches == agent.n_switches
        np.testing.assert_array_equal(restored.agents[key].predict(np.eye(3)), agent.predict(np.eye(3)))


@every_rule
def test_waiting_decisions_columns_and_uploads_in_flight_are_saved(name):
    agent = make_rule(name).agent("a")
    frame = pd.DataFrame(rows(4), columns=["age", "price", "hour"])
    waiting, done = agent.choose(frame), agent.choose(frame)
    agent.observe(done, 1.0)
    for seed in range(30):
        agent.observe(rows(1, seed=seed)[0], 1.0)
    restored = fb.load(agent.to_bytes())
    assert state_of(restored) == state_of(agent)
    assert restored.in_flight == agent.in_flight and restored.features == ("age", "price", "hour")
    with pytest.raises(errors.AlreadyObserved):
        restored.observe(done, 1.0)
    restored.observe(waiting, 1.0)
    fresh = restored.choose(frame)
    assert fresh.id not in (waiting.id, done.id)
    restored.observe(fresh, 1.0)


@every_rule
def test_a_rule_survives_the_trip_through_plain_values(name):
    with deliberate_radius():
        rule = make_rule(name, beta=fb.radius.exogenous(noise_scale=0.2), features=["a", "b", "c"])
    data = json.loads(json.dumps(rule.to_dict()))
    assert rule_from_dict(data) == rule
    with pytest.raises(errors.InvalidParameter, match="cannot be made"):
        rule_from_dict({**data, "gamma_sideways": 1.0})
    with pytest.raises(errors.InvalidParameter, match="expected an algorithm among"):
        rule_from_dict({**data, "algorithm": "Magic"})


@every_rule
def test_bytes_that_are_no_snapshot_are_a_named_error(name):
    blob = play(make_rule(name), 20).agent("0").to_bytes()
    for bad in (b"", b"\x00", b"nonsense", blob[: len(blob) // 2], pickle.dumps({}), blob + b"x"):
        with pytest.raises(errors.FormatError):
            fb.load(bad)
    data = msgspec.msgpack.decode(blob)
    with pytest.raises(errors.UnsupportedFormat, match="version"):
        fb.load(msgspec.msgpack.encode({**data, "version": 2}))
    for key in data["state"]:
        damaged = {**data, "state": {k: v for k, v in data["state"].items() if k != key}}
        with pytest.raises(errors.FormatError, match="damaged"):
            fb.load(msgspec.msgpack.encode(damaged))
