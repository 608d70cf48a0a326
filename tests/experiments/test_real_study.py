"""The study of real data: its plan, its measures, its answer, and what it promises on digits."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.experiments.drivers import play
from fedbandit.experiments.results import Group, Results
from fedbandit.experiments.spec import Spec, make_spec
from fedbandit.experiments.store import Run
from fedbandit.experiments.studies import real
from fedbandit.experiments.study import Size
from fedbandit.simulation.real import REAL


def played(cells, seeds=(0, 1)):
    """The runs of some cells, without a disk."""
    groups = []
    for cell in cells:
        runs = []
        for seed in seeds:
            outcome = play(cell.spec, seed)
            runs.append(Run(cell.spec, seed, outcome.columns, outcome.facts, 0.0, {}))
        groups.append(Group(cell, runs))
    return Results(groups)


@pytest.fixture(scope="module")
def tiny():
    return played(real.plan(Size("tiny")))


def test_every_spec_of_a_data_world_survives_json():
    for cell in real.plan(Size("tiny")):
        again = Spec.from_dict(cell.spec.to_dict())
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
        assert real.message_share(tiny, tiny.one(data=data, system=real.ALONE)) == 0.0


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
def test_on_digits_fedlinucb_keeps_nine_tenths_of_the_gain_for_a_twentieth_of_the_messages():
    shown = [(real.ALONE, 0.0), (real.EVERYTHING, 0.0), (real.FED, 1.0), (real.FED, 0.3)]
    cells = [
        cell
        for cell in real.plan(Size("full"))
        if cell.keys["data"] == "digits" and (cell.keys["system"], cell.keys["knob"]) in shown
    ]
    results = played(cells, seeds=range(8))
    for group in results.where(system=real.FED):
        assert real.gain_share(results, group).low > 0.9
        assert real.message_share(results, group) < 0.05
    figure = real.digits_picture(results)
    assert len(figure.axes) == 2
