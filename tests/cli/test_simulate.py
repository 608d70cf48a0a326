"""`fedbandit simulate`, as a process."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import fedbandit as fb
from fedbandit.cli.main import app
from fedbandit.cli.simulate import COLUMNS

FIELDS = {"algorithm", "seed", *COLUMNS}


def fedbandit(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedbandit", *shlex.split(line)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_json_has_one_object_a_seed_and_algorithm() -> None:
    done = fedbandit(
        "simulate --algorithm fedlinucb --algorithm async-linucb --world uniform --agents 5 --rounds 400 "
        "--alpha 1 --beta 0.5 --lam 1 --seeds 3 --json"
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["algorithm"], row["seed"]) for row in rows] == [
        (name, seed) for name in ("fedlinucb", "async-linucb") for seed in range(3)
    ]
    assert all(set(row) == FIELDS for row in rows)
    for row in rows:
        assert row["messages"] == row["messages_up"] + row["messages_down"]
        assert row["scalars"] == row["messages"] * (15 * 16 // 2 + 15)
        assert row["raw_bytes"] == 8 * 16 * 400
        assert (row["cheaper_from_round"] is None) == (row["algorithm"] != "fedlinucb")


def test_the_command_and_the_library_agree() -> None:
    done = fedbandit("simulate --world sphere --dim 6 --actions 4 --noise 0.2 --agents 3 --rounds 300 --json")
    row = json.loads(done.stdout)[0]
    rule = fb.FedLinUCB(dim=6, alpha=1.0, beta=0.5, lam=1.0)
    trace = fb.simulate(rule, fb.worlds.sphere(dim=6, n_actions=4, noise=0.2), n_agents=3, n_rounds=300, seed=0)
    assert np.isclose(row["regret"], trace.regret[-1], rtol=1e-9)
    assert row["messages"] == trace.n_messages


def test_the_table_is_for_people() -> None:
    done = fedbandit("simulate --algorithm dislinucb --algorithm oful-shared --rounds 200 --seeds 2 --agents 4")
    assert done.returncode == 0, done.stderr
    assert "dislinucb" in done.stdout
    assert "±" in done.stdout
    assert "mean ± standard deviation between seeds" in " ".join(done.stdout.split())
    assert "raw rows (features or context, and reward), each sent once: 25.6 kB" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--algorithm nonsense", "expected algorithm to be one of fedlinucb"),
        ("--world nowhere", "expected world to be one of uniform"),
        ("--lam 0", "expected lam > 0"),
        ("--alpha -1", "expected alpha ≥ 0"),
        ("--beta big", "expected beta"),
        ("--world ball --actions 3", "the ball world has no n_actions"),
        ("--participation never", "expected participation"),
        ("--threshold 3", "--threshold is no option of fedlinucb, which has --alpha, --join, --refresh"),
        (
            "--algorithm oful-shared --switching 1",
            "--switching is no option of oful-shared, which has --policy, --explore",
        ),
        (
            "--algorithm dislinucb --algorithm oful-shared --join",
            "--join is no option of dislinucb, which has --threshold, --enrolment, --clock, --policy",
        ),
        ("--algorithm async-linucb --gamma-up 0.5", "expected gamma_up ≥ 1"),
        ("--min-upload 0", "expected min_upload"),
    ],
)
def test_a_wrong_option_is_a_sentence_and_status_2(words: str, says: str) -> None:
    done = fedbandit(f"simulate --rounds 10 {words}")
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_radius_can_be_named() -> None:
    done = fedbandit("simulate --rounds 100 --beta exogenous --delta 0.05 --json")
    assert json.loads(done.stdout)[0]["regret"] > 0


def test_traces_can_be_saved(tmp_path) -> None:
    saved = []
    for options in ([], ["--alpha", "3"], ["--participation", "zipf"], ["--dim", "5"], []):
        command = ["--rounds", "50", "--seeds", "2", "--save", str(tmp_path), "--json", *options]
        assert CliRunner().invoke(app, ["simulate", *command]).exit_code == 0
        saved.append(sorted(tmp_path.iterdir()))
    # Another setting is another file; the same run again is the same file.
    assert [len(files) for files in saved] == [2, 4, 6, 8, 8]
    traces = [fb.Trace.load(path) for path in saved[-1]]
    assert {(trace.about["rule"]["alpha"], trace.about["seed"]) for trace in traces} >= {(1.0, 0), (3.0, 1)}
    assert all(trace.rounds[-1] == 50 and trace.id in path.name for trace, path in zip(traces, saved[-1], strict=True))
    assert traces[0].about["fedbandit"] == fb.__version__
    assert {trace.about["participation"]["name"] for trace in traces} == {"uniform", "zipf"}


def test_an_option_reaches_the_algorithms_that_have_it(tmp_path) -> None:
    words = "--algorithm dislinucb --algorithm async-linucb --algorithm oful-independent --switching 2"
    more = f"{words} --enrolment arrival --gamma-down 3 --rounds 20 --engine reference --json --save {tmp_path}"
    assert CliRunner().invoke(app, ["simulate", *more.split()]).exit_code == 0
    rules = {path.name.split("-uniform")[0]: fb.Trace.load(path).about["rule"] for path in tmp_path.iterdir()}
    assert (rules["async-linucb"]["gamma_up"], rules["async-linucb"]["gamma_down"]) == (6.0, 3.0)
    assert rules["async-linucb"]["enrolment"] == rules["dislinucb"]["enrolment"] == "arrival"
    assert np.isclose(rules["dislinucb"]["threshold"], 20 / (15 * 15 * np.log(20)))
    assert rules["oful-independent"]["switching"] == 2.0


def test_the_version_is_printed() -> None:
    assert fedbandit("--version").stdout.strip() == f"fedbandit {fb.__version__}"


def test_a_radius_without_a_proof_is_a_sentence_on_standard_error_and_the_run_goes_on() -> None:
    done = fedbandit("simulate --algorithm async-linucb --beta exogenous --agents 3 --rounds 100 --json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("fedbandit: warning: fb.radius.exogenous has no proof for AsyncLinUCB")
    assert len(done.stderr.splitlines()) == 1 and json.loads(done.stdout)
