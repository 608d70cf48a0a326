"""The study of real data: its plan, its measures, its answer, and what it promises on digits."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.experiments.drivers.base import play
from fedbandit.experiments.results import Group, Results
from fedbandit.experiments.run_store import StoredRun
from fedbandit.experiments.spec import RunSpec, make_spec
from fedbandit.experiments.studies import real
from fedbandit.experiments.study import Size
from fedbandit.simulation.datasets.catalog import REAL


def played(cells, seeds=(0, 1)):
    """The runs of some cells, without a disk."""
    groups = []
    for cell in cells:
        runs = []
        for seed in seeds:
            outcome = play(cell.spec, seed)
            runs.append(StoredRun(cell.spec, seed, outcome.columns, outcome.facts, 0.0, {}))
        groups.append(Group(cell, runs))
    return Results(groups)


@pytest.fixture(scope="module")
def tiny():
    return played(real.plan(Size("tiny")))


def test_every_spec_of_a_data_world_survives_json():
    for cell in real.plan(Size("tiny")):
        again = RunSpec.from_dict(cell.spec.to_dict())
        assert again == cell.spec
        assert again.make_world() == cell.spec.make_world()
        assert again.make_participation() == cell.spec.make_participation()


def test_a_spec_can_name_every_data_set():
    wine = fb.worlds.real("wine", n_agents=3)
    spec = make_spec(
        fb.FedLinUCB(dim=wine.dim, beta=0.1),
        wine,
        n_agents=3,
        n_rounds=178,
        participation=fb.participation.by_rows(wine),
    )
    assert spec.world["name"] == "wine"
    assert spec.make_participation().counts == wine.row_counts
    assert set(REAL) <= set(__import__("fedbandit.experiments.spec", fromlist=["EVERY_WORLD"]).EVERY_WORLD)


def test_the_answer_names_every_data_set_with_its_rewards(tiny):
    answer = real.analyse(tiny)
    for data in ("wine", "breast cancer"):
        assert f"On {data}, agents alone earn" in answer.sentence
    assert [table.title for table in answer.tables]
    assert len(answer.tables[0].rows) == len(tiny.groups)
    assert answer.others == {}


def test_shared_reaches_all_of_its_own_gain_and_alone_none(tiny):
    for data in ("wine", "breast cancer"):
        assert real.gain_share(tiny, tiny.one(data=data, system=real.EVERYTHING)).mean == pytest.approx(1.0)
        assert real.gain_share(tiny, tiny.one(data=data, system=real.ALONE)).mean == pytest.approx(0.0)
        assert tiny.one(data=data, system=real.ALONE).mean("messages").mean == 0


def test_two_messages_per_decision_know_what_sharing_everything_knows(tiny):
    """The baseline that the fleet is measured against is run, and earns what the broadcast earns."""
    for data in ("wine", "breast cancer"):
        every = tiny.one(data=data, system=real.HELPED, knob=real.EVERY_DECISION)
        shared = tiny.one(data=data, system=real.EVERYTHING)
        assert every.mean("messages").mean == every.sharing_cost.two_per_decision
        assert shared.mean("messages").mean == shared.sharing_cost.broadcast
        # Uploads carry only the blocks that they touched, here one each.
        assert every.mean("bytes").mean < every.sharing_cost.bytes_of(every.sharing_cost.two_per_decision)
        # Ties between arms can be broken otherwise by the last bit of a sum; nothing else differs.
        for seed, reward in real.reward_of(every).items():
            assert reward == pytest.approx(real.reward_of(shared)[seed], abs=0.01)


def test_the_answer_names_the_honest_baselines(tiny):
    answer = real.analyse(tiny)
    for data in ("wine", "breast cancer"):
        best = real.shown_best(tiny, data)
        assert real.price_of(best) in answer.sentence
    assert "of two per decision" in answer.sentence and "of a broadcast per round" in answer.sentence
    assert answer.sentence.count("Two messages per decision (α = 0, join and arrival) earn") == 2
    assert {"of two per decision", "of a broadcast", "bytes", "raw rows, bytes"} <= set(answer.tables[0].columns)


def test_rewards_lie_between_nothing_and_the_best_arm(tiny):
    for group in tiny:
        values = np.array(list(real.reward_of(group).values()))
        assert ((values > 0) & (values <= 1)).all()


def test_without_the_extra_the_plan_is_empty_and_the_answer_says_what_to_install(monkeypatch):
    def missing(*_):
        raise fb.errors.MissingExtra("no scikit-learn")

    monkeypatch.setattr(real, "_rules", missing)
    assert real.plan(Size("quick")) == []
    with pytest.raises(fb.errors.InvalidParameter, match=r"fedbandit\[data\]"):
        real.analyse(Results([]))


@pytest.mark.slow
def test_on_digits_fedlinucb_keeps_nine_tenths_of_the_gain_for_half_a_message_per_decision():
    every = (real.HELPED, real.EVERY_DECISION)
    shown = [(real.ALONE, 0.0), (real.EVERYTHING, 0.0), (real.FED, 1.0), (real.FED, 0.3), every]
    cells = [
        cell
        for cell in real.plan(Size("full"))
        if cell.keys["data"] == "digits" and (cell.keys["system"], cell.keys["knob"]) in shown
    ]
    results = played(cells, seeds=range(8))
    for group in results.where(system=real.FED):
        part = real.gain_share(results, group)
        assert part.mean > 0.9 and part.low > 0.88
        assert group.sharing_cost.of_broadcast(group.mean("messages").mean) < 0.05
        assert group.sharing_cost.of_two_per_decision(group.mean("messages").mean) < 0.5
    figure = real.digits_picture(results)
    assert len(figure.axes) == 2
