"""Traces: what is recorded, when, and how it comes back from a file."""

import json

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.messages import n_bytes, n_scalars
from fedbandit.errors import FormatError, InvalidParameter, UnsupportedFormat
from fedbandit.simulation.trace import COLUMNS, rounds_to_record
from tests.builders import make_rule, make_world


def run(record="all", n_rounds=80, name="fedlinucb"):
    return fb.simulate(
        make_rule(name), make_world(), n_agents=3, n_rounds=n_rounds, seed=1, record=record, engine="reference"
    )


def test_columns_are_cumulative_and_the_four_units_agree():
    trace = run()
    assert trace.rounds.tolist() == list(range(1, 81))
    for column in (trace.regret, trace.messages_up, trace.messages_down, trace.switches):
        assert (np.diff(column) >= 0).all()
    assert trace.n_messages == trace.messages_up[-1] + trace.messages_down[-1] == trace.messages[-1] > 0
    assert trace.n_scalars == trace.n_messages * n_scalars(3)
    assert trace.n_bytes == trace.n_messages * n_bytes(3)
    assert trace.n_switches == trace.switches[-1] == trace.n_messages // 2
    assert len(trace.agents) == len(trace.choices) == 80


def test_recording_less_keeps_the_same_numbers():
    everything, few, log = run(), run(record=[5, 40]), run(record="log")
    assert few.rounds.tolist() == [5, 40, 80], "the last round is always recorded"
    for trace in (few, log):
        assert trace.agents is None and trace.choices is None
        for name in COLUMNS:
            np.testing.assert_array_equal(getattr(trace, name), getattr(everything, name)[trace.rounds - 1])


def test_log_spaced_rounds_are_few_and_reach_from_the_first_to_the_last():
    for n_rounds in (1, 2, 7, 200, 30_000, 1_000_000):
        rounds = rounds_to_record("log", n_rounds)
        assert rounds[0] == 1 and rounds[-1] == n_rounds
        assert (np.diff(rounds) > 0).all() and len(rounds) <= 201
    ratios = rounds_to_record("log", 1_000_000)[-50:]
    assert np.diff(np.log(ratios)).std() < 0.001


def test_a_round_can_be_looked_up_if_it_was_recorded():
    trace = run(record=[10])
    found = trace.at(10)
    assert found["rounds"] == 10 and set(found) == set(COLUMNS)
    assert found["regret"] == run().regret[9]
    json.dumps(found)
    with pytest.raises(InvalidParameter, match=r"record=\[11, …\]"):
        trace.at(11)


@pytest.mark.parametrize("record", ["some", [0], [81], [-3, 5]])
def test_rounds_that_cannot_be_recorded_are_named_errors(record):
    with pytest.raises(InvalidParameter, match="record"):
        run(record=record)


@pytest.mark.parametrize("record", ["all", "log", [7]])
def test_a_saved_trace_comes_back_to_the_bit(tmp_path, record):
    trace = run(record=record)
    trace.save(tmp_path / "trace.npz")
    loaded = fb.Trace.load(tmp_path / "trace.npz")
    assert loaded.dim == trace.dim and loaded.n_bytes == trace.n_bytes
    for name in (*COLUMNS, "agents", "choices"):
        saved, found = getattr(trace, name), getattr(loaded, name)
        assert (saved is None) == (found is None)
        if saved is not None:
            np.testing.assert_array_equal(found, saved)
            assert found.dtype == saved.dtype


def test_a_trace_says_what_was_run(tmp_path):
    rule, world = fb.FedLinUCB(dim=3, alpha=np.inf, beta=fb.radius.exogenous(noise_scale=0.1)), fb.worlds.uniform(dim=3)
    trace = fb.simulate(rule, world, n_agents=2, n_rounds=20, seed=7)
    trace.save(tmp_path / "trace.npz")
    loaded = fb.Trace.load(tmp_path / "trace.npz")
    assert loaded.about == trace.about
    assert loaded.id == trace.id
    assert (loaded.about["seed"], loaded.about["n_agents"], loaded.about["rule"]["alpha"]) == (7, 2, "inf")
    assert loaded.about["world"] == {"name": "uniform", "dim": 3, "n_actions": 25, "noise": 0.3}


def test_every_setting_is_part_of_the_identity_of_a_run():
    features = np.arange(24.0).reshape(4, 3, 2)
    rule, world = fb.FedLinUCB(dim=2, alpha=1.0, beta=0.5), fb.worlds.uniform(dim=2)

    def id_of(rule=rule, world=world, **changes):
        return fb.simulate(rule, world, **{"n_agents": 2, "n_rounds": 9, "engine": "reference", **changes}).id

    ids = [
        id_of(),
        id_of(rule=fb.FedLinUCB(dim=2, alpha=2.0, beta=0.5)),
        id_of(rule=fb.FedLinUCB(dim=2, alpha=1.0, beta=0.5, join=True)),
        id_of(world=fb.worlds.uniform(dim=2, noise=0.1)),
        id_of(world=fb.worlds.from_arrays(features, features[:, :, 0])),
        id_of(world=fb.worlds.from_arrays(features, features[:, :, 1])),
        id_of(n_agents=3),
        id_of(n_rounds=8),
        id_of(seed=1),
        id_of(record=[3]),
        id_of(participation=fb.participation.zipf(exponent=2.0)),
        id_of(participation="zipf"),
    ]
    assert len(set(ids)) == len(ids)
    assert id_of() == ids[0]
    assert id_of(participation=fb.participation.zipf()) == ids[-1]


def test_traces_of_before_have_no_description(tmp_path):
    trace = run()
    header = np.frombuffer(json.dumps({"fedbandit_trace": 1, "dim": trace.dim}).encode(), dtype=np.uint8)
    before = [name for name in COLUMNS if name not in ("scalars", "bytes")]
    np.savez(tmp_path / "old.npz", header=header, **{name: getattr(trace, name) for name in before})
    old = fb.Trace.load(tmp_path / "old.npz")
    assert old.about is None and old.id is None
    assert old.n_messages == trace.n_messages
    assert (old.n_scalars, old.n_bytes) == (trace.n_scalars, trace.n_bytes) and trace.n_scalars > 0


@pytest.mark.parametrize("engine", ["reference", "compiled"])
def test_scalars_and_bytes_are_those_of_every_message(engine):
    trace = fb.simulate(
        fb.FedLinUCB(dim=3, alpha=0.5, beta=0.5),
        fb.worlds.uniform(dim=3),
        n_agents=3,
        n_rounds=60,
        record="all",
        engine=engine,
    )
    assert np.array_equal(trace.scalars, trace.messages * 9)
    assert np.array_equal(trace.bytes, trace.messages * 8 * 12)


def test_a_name_without_an_ending_is_kept(tmp_path):
    run().save(str(tmp_path / "plain"))
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]
    assert fb.Trace.load(str(tmp_path / "plain")).n_messages == run().n_messages


def test_files_that_are_no_trace_are_named_errors(tmp_path):
    path = tmp_path / "trace.npz"
    run().save(path)
    whole = path.read_bytes()
    for content in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-30]):
        path.write_bytes(content)
        with pytest.raises(FormatError, match="expected a trace"):
            fb.Trace.load(path)
    np.savez(path, rounds=np.arange(3))
    with pytest.raises(FormatError, match="expected a trace"):
        fb.Trace.load(path)
    np.save(tmp_path / "array.npy", np.arange(3))
    with pytest.raises(FormatError, match="expected a trace"):
        fb.Trace.load(tmp_path / "array.npy")


def test_a_trace_of_a_newer_version_says_so(tmp_path):
    header = np.frombuffer(json.dumps({"fedbandit_trace": 2, "dim": 3}).encode(), dtype=np.uint8)
    np.savez(tmp_path / "trace.npz", header=header)
    with pytest.raises(UnsupportedFormat, match="newer version"):
        fb.Trace.load(tmp_path / "trace.npz")


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        fb.Trace.load(tmp_path / "nothing.npz")
