"""Every study at its tiny size: it runs, answers, draws, and its sentence agrees with its tables."""

import re

import numpy as np
import pytest

from fedbandit.errors import InvalidParameter
from fedbandit.experiments.compare import Interval
from fedbandit.experiments.output.figures import in_style
from fedbandit.experiments.output.tables import around, number
from fedbandit.experiments.results import Results
from fedbandit.experiments.run_store import RunStore
from fedbandit.experiments.studies import STUDIES, chosen
from fedbandit.experiments.study import Size, Study, StudyAnswer, read_results, tasks_of
from fedbandit.experiments.study_runner import conduct, present
from fedbandit.experiments.sweep import sweep
from fedbandit.simulation.worlds import WORLDS

OURS = (
    "table1",
    "authors",
    "articles",
    "tradeoff",
    "lower_bound",
    "bias",
    "confidence",
    "asynchrony",
    "delay",
    "scaling",
    "lemmas",
    "systems",
    "drift",
)


def answer_of(study: Study, root) -> tuple[Results, StudyAnswer]:
    results = read_results(root, study.name)
    with in_style():
        return results, study.analyse(results)


def column(table, name: str) -> list:
    return [row[list(table.columns).index(name)] for row in table.rows]


def says_table1(answer: StudyAnswer, results: Results) -> None:
    (table,) = answer.tables
    verdicts = [row[-1] for row in table.rows if row[1] in ("regret", "messages", "switches")]
    assert ("faster than its line of Table 1 grows" in answer.sentence) == ("above" in verdicts)
    clear = set(verdicts) == {"within"}
    assert ("no system's regret, messages or switches grow faster" in answer.sentence) == clear
    assert [axis.get_title(loc="left") for axis in answer.figure.axes[6:9]] == [f"Switches over {v}" for v in "TMd"]
    (row,) = [r for r in table.rows if r[:3] == ["FedLinUCB", "messages", "M"]]
    assert f"M^{row[5].split()[0]}" in answer.sentence


def says_authors(answer: StudyAnswer, results: Results) -> None:
    (table,) = answer.tables
    rows = [row for row in table.rows if row[1] == "FedLinUCB α=1"]
    for row in rows:
        assert f"FedLinUCB ends at regret {number(row[3].mean)} with {number(row[6].mean)} messages" in answer.sentence


def says_articles(answer: StudyAnswer, results: Results) -> None:
    (table,) = answer.tables
    for row in table.rows:
        if row[1] == "FedLinUCB α=1":
            assert f"to {number(row[2].mean)} with {number(row[4].mean)} messages" in answer.sentence
        if row[1] == "OFUL independent":
            assert f"from {number(row[2].mean)} of independent learners" in answer.sentence
            assert row[4].mean == 0


def says_tradeoff(answer: StudyAnswer, results: Results) -> None:
    gains, fronts = answer.tables
    verdicts = [row[5] for row in gains.rows]
    helps, known = verdicts.count("helps"), sum(verdict != "–" for verdict in verdicts)
    assert f"help FedLinUCB in {helps} of {known} places" in answer.sentence
    held = sum(int(cell.split(" of ")[0]) for cell in column(fronts, "DisLinUCB"))
    assert (
        f"{held} of {sum(int(c.split(' of ')[1]) for c in column(fronts, 'DisLinUCB'))} of DisLinUCB" in answer.sentence
    )


def says_lower_bound(answer: StudyAnswer, results: Results) -> None:
    (table,) = answer.tables
    isolated = [row for row in table.rows if row[0].startswith("FedLinUCB, isolated")]
    few = [row for row in table.rows if 0 < float(row[1]) < 1 and row not in isolated]
    if few:
        assert f"of {len(few)} settings" in answer.sentence
    assert f"of {len(isolated)} settings." in answer.sentence
    alone, shared = results.one(system="OFUL independent"), results.one(system="OFUL shared")
    assert alone.mean("messages").mean == 0
    assert shared.mean("regret").mean < alone.mean("regret").mean


def says_bias(answer: StudyAnswer, results: Results) -> None:
    (table,) = answer.tables
    last = {row[0]: row for row in table.rows}  # the largest fleet of each policy stands last
    lazy, eager = last["FedLinUCB (lazy)"], last["Async-LinUCB (eager)"]
    assert around(lazy[2]) in answer.sentence
    assert around(eager[2]) in answer.sentence
    assert abs(lazy[2].mean) < 0.2 < eager[2].mean
    assert ("lazy policy, which is at most" in answer.sentence) == lazy[2].contains(0.0)


def says_confidence(answer: StudyAnswer, results: Results) -> None:
    coverage, alphas, quitting = answer.tables
    for kind in ("fixed", "exogenous", "adaptive", "paper"):
        held = [re.findall(r"\d+", row[3]) for row in coverage.rows if row[0] == kind]
        hits, runs = (sum(int(pair[i]) for pair in held) for i in (0, 1))
        assert f"{kind} covered θ* in {hits} of {runs} runs" in answer.sentence
    assert alphas.rows
    by_reason = {row[0]: row[1] for row in quitting.rows}
    assert f"covered in {by_reason['disappointment']} runs" in answer.sentence
    assert by_reason["disappointment"].startswith("0 of")
    assert len(set(by_reason["nobody"].split(" of "))) == 1  # all of them


def says_asynchrony(answer: StudyAnswer, results: Results) -> None:
    (table,) = answer.tables
    contacts = {row[1]: row[7] for row in table.rows if isinstance(row[7], Interval)}
    assert contacts["FedLinUCB"].mean == 0
    assert contacts["DisLinUCB"].mean > 0
    assert "it sends 0 messages to inactive agents" in answer.sentence


def says_delay(answer: StudyAnswer, results: Results) -> None:
    (table,) = answer.tables
    late = [row for row in table.rows if row[1] > 0]
    worst = max(late, key=lambda row: row[1])
    assert f"multiply the regret by {float(worst[4].split()[0]):.1f} [" in answer.sentence
    assert "no observations were lost or counted twice" in answer.sentence
    assert all(value == 0 for group in results for value in group.fact("miscounted").values())


def says_scaling(answer: StudyAnswer, results: Results) -> None:
    (table,) = answer.tables
    largest = max(column(table, "M"))
    regret = {row[1]: row[2].mean for row in table.rows if row[0] == largest}
    assert f"to {number(regret['FedLinUCB'])}" in answer.sentence
    assert f"independent learners {number(regret['OFUL independent'])}" in answer.sentence


def says_lemmas(answer: StudyAnswer, results: Results) -> None:
    (table,) = answer.tables
    held = column(table, "holds")
    assert f"{held.count('yes')} of {len(held)} corrected bounds hold" in answer.sentence
    assert set(held) == {"yes"}
    shown = results.one(part="statements", alpha="1/M")
    assert f"reaches {max(c.max() for c in shown.curve('behind').values()):.3g} times" in answer.sentence
    assert results.one(part="two lines").mean("messages").mean % 2 == 0


def says_systems(answer: StudyAnswer, results: Results) -> None:
    from fedbandit.experiments.studies.systems import COMMON, SYSTEMS

    comparison, needs, participation = answer.tables
    for world in COMMON:
        ends = {system.name for system in SYSTEMS if system.baseline}
        rows = [row for row in comparison.rows if row[0] == world and row[1] not in ends]
        best = min(rows, key=lambda row: row[5].mean)
        assert f"on {world} {best[1]} (regret {number(best[5].mean)}" in answer.sentence
    assert column(needs, "system") == [system.name for system in SYSTEMS]
    homes = {(row[0], row[1]) for row in comparison.rows if row[2] == "yes"}
    assert homes == {(system.home, system.name) for system in SYSTEMS}
    silent = [row for row in comparison.rows if row[1] == "OFUL independent"]
    assert silent and all(row[6].mean == row[7].mean == row[8].mean == 0 for row in silent)
    for row in participation.rows:
        if row[1] != "even":
            assert f"{row[0]} {row[3]} times the regret" in answer.sentence


def says_drift(answer: StudyAnswer, results: Results) -> None:
    (table,) = answer.tables
    abrupt = {row[2]: row[3].mean for row in table.rows if row[1] == "abrupt"}
    for system, regret in abrupt.items():
        assert system == "restart, silence 50" or number(regret) in answer.sentence
    half = results.one(part="half", M=table.rows[0][0]).mean("regret").mean
    assert abrupt["restart at the right moment"] == pytest.approx(2 * half)
    assert {row[1] for row in table.rows} == {"abrupt", "small", "slow", "repeated", "none"}


def test_every_registered_system_is_in_the_study_of_systems():
    from fedbandit.algorithms.catalog import ALGORITHMS

    played = {type(cell.spec.make_rule()) for cell in STUDIES["systems"].plan(Size("tiny"))}
    assert played == {entry.rule for entry in ALGORITHMS.own().values()}


@pytest.mark.parametrize("name", OURS)
def test_a_study_runs_and_says_what_its_table_says(name, tmp_path):
    study = STUDIES[name]
    tally = conduct([study], Size("tiny"), tmp_path, n_jobs=2)
    assert tally.failures == ()
    results, answer = answer_of(study, tmp_path)
    globals()[f"says_{name}"](answer, results)
    assert not re.search(r"\bnan\b|\binf\b", answer.sentence)
    page = present([study], tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "<svg" in page
    assert "No answer" not in page
    svg = (tmp_path / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    assert all(spec_id in svg for spec_id in results.spec_ids())


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("size", ["tiny", "quick", "full"])
def test_plans_name_each_cell_and_each_run_once(name, size):
    cells = STUDIES[name].plan(Size(size))
    keys = [tuple(sorted(map(str, cell.keys.items()))) for cell in cells]
    assert len(set(keys)) == len(keys)
    tasks = tasks_of(cells)
    assert len({(spec.id, seed) for spec, seed in tasks}) == len(set(tasks))
    for cell in cells:
        assert cell.spec.make_rule().dim == cell.spec.make_world().dim


def test_an_answer_follows_its_data(tmp_path):
    """Other runs, another sentence: nothing is written in advance."""
    study = STUDIES["bias"]
    sentences = []
    for seed in (0, 7):
        cells = [type(c)(c.keys, c.spec, (seed, seed + 1)) for c in study.plan(Size("tiny"))]
        store = RunStore(tmp_path / str(seed))
        sweep(store, tasks_of(cells), n_jobs=2)
        with in_style():
            sentences.append(study.analyse(Results.read(store, cells, "tiny")).sentence)
    assert sentences[0] != sentences[1]


def test_the_published_numbers_are_those_of_the_authors():
    from fedbandit.experiments.studies.authors import CHECKPOINTS, PUBLISHED

    assert CHECKPOINTS == (1_000, 5_000, 10_000, 30_000)
    assert PUBLISHED[15, "FedLinUCB α=1"][0] == (48.7, 67.9, 77.0, 92.2)
    assert PUBLISHED[30, "Async-LinUCB γ=6"][2] == {1_000: 486, 10_000: 1_018, 30_000: 1_290}
    assert all(np.all(np.diff(regret) > 0) for regret, _, _ in PUBLISHED.values())


def test_studies_use_worlds_and_sizes_that_exist():
    assert {"uniform", "articles", "sphere", "adversarial"} <= set(WORLDS)
    assert [study.name for study in chosen("all")][: len(OURS)] == list(OURS)
    with pytest.raises(InvalidParameter):
        chosen("everything")
    with pytest.raises(InvalidParameter):
        Size("huge")
