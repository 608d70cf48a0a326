"""The baselines beside every count of messages, against runs that really send them."""

import math

import pytest

import fedbandit as fb
from fedbandit.algorithms.messages import n_bytes
from fedbandit.experiments.drivers.base import play
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.run_store import StoredRun
from fedbandit.experiments.sharing_cost import SharingCost, baseline_note, human_bytes, range_text
from fedbandit.experiments.spec import make_spec

WORLD = fb.worlds.Sphere(dim=4, n_actions=5, noise=0.2)
COST = SharingCost(n_agents=3, n_rounds=120, dim=4)


def test_alpha_zero_with_join_and_arrival_sends_two_messages_per_decision():
    rule = fb.FedLinUCB(dim=4, alpha=0.0, beta=0.5, join=True, refresh="arrival")
    trace = fb.simulate(rule, WORLD, n_agents=3, n_rounds=120, seed=0)
    assert trace.n_messages == COST.two_per_decision == 240
    assert trace.n_bytes == COST.bytes_of(240)


def test_it_decides_as_one_shared_model_does():
    every = fb.FedLinUCB(dim=4, alpha=0.0, beta=0.5, join=True, refresh="arrival")
    shared = fb.OFUL(dim=4, beta=0.5, mode="shared")
    ours, theirs = (fb.simulate(r, WORLD, n_agents=3, n_rounds=120, seed=0) for r in (every, shared))
    assert ours.regret[-1] == pytest.approx(theirs.regret[-1])


def test_sharing_everything_is_counted_as_a_broadcast():
    trace = fb.simulate(fb.OFUL(dim=4, beta=0.5, mode="shared"), WORLD, n_agents=3, n_rounds=120, seed=0)
    assert trace.n_messages == COST.broadcast == 480


def test_raw_rows_are_the_features_and_the_reward_or_the_shorter_context():
    assert COST.raw_bytes == 120 * 8 * 5
    assert COST.raw_bytes_to_everybody == 3 * COST.raw_bytes
    digits = fb.worlds.real("digits")
    assert digits.row_numbers == 12  # ten components, the arm, the reward
    assert fb.worlds.real("wine").row_numbers == 13 + 2
    assert fb.worlds.real("flights").row_numbers == 3


def test_shares_are_of_the_baseline_they_name():
    assert COST.of_two_per_decision(60) == 0.25
    assert COST.of_broadcast(60) == 0.125
    assert COST.per_decision(60) == 0.5
    assert COST.bytes_of(60) == 60 * n_bytes(4)


def test_the_note_names_every_baseline_with_its_numbers():
    text = baseline_note([COST, SharingCost(n_agents=5, n_rounds=120, dim=4)])
    assert "240 messages" in text and "480 to 720" in text and human_bytes(COST.raw_bytes) in text


def test_sums_are_cheaper_than_rows_from_the_round_that_is_said():
    cost = SharingCost(n_agents=20, n_rounds=1797, dim=110, row_numbers=12, blocks=10)
    sent = 400 * n_bytes(110, 10)
    t = cost.rounds_until_cheaper(sent)
    grown = [sent * math.log1p(rounds / 110) / math.log1p(1797 / 110) for rounds in (t, 0.99 * t)]
    assert grown[0] <= 8 * 12 * t
    assert grown[1] > 8 * 12 * 0.99 * t


def test_every_study_says_bytes_beside_those_of_raw_rows():
    world = fb.worlds.sphere(dim=4, n_actions=5)
    groups = []
    for alpha in (0.0, 0.5, 5.0):
        spec = make_spec(fb.FedLinUCB(dim=4, alpha=alpha, beta=0.5), world, n_agents=3, n_rounds=120)
        run = StoredRun(spec, 0, play(spec, 0).columns, {}, 0.0, {})
        groups.append(Group(Cell({"alpha": alpha}, spec, (0,)), [run]))
    (note,) = Results(groups).bytes_notes()
    sizes = [group.mean("bytes").mean for group in groups[1:]]  # α = 0 sends in proportion to the rounds
    assert f"{human_bytes(min(sizes))} to {human_bytes(max(sizes))} per run" in note
    assert human_bytes(8 * 5 * 120) in note
    until = [COST.rounds_until_cheaper(size) for size in sizes]
    assert f"from about {range_text(until)} rounds on" in note
    assert Results(groups[:1]).bytes_notes() == []
