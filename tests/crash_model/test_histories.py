"""Histories of a whole fleet in one process: nothing is lost, counted twice, changed or stuck under any fault.

`python -m tests.crash_model` runs more of them, and `--replay SEED` shows one and its shortest form.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.crash_model.__main__ import run
from tests.crash_model.device import Options
from tests.crash_model.history import OFF, Plan, histories
from tests.crash_model.reverted import FIXES, SOURCE, search
from tests.crash_model.seams import Fault
from tests.crash_model.steps import Step

IN_A_MINUTE = 800
# A generator that a kill left open ends at garbage collection, on a closed journal; no process would see it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
# Calls of one process, with the steps that must precede them.
CALLS: dict[str, list[Step]] = {
    "choose": [Step("choose", a=11), Step("choose", a=11)],
    "observe": [Step("choose", a=3), Step("observe", a=1, b=5)],
    "observe_row": [Step("observe_row", a=25, b=5)],
    "learn_batch": [Step("learn_batch", a=25, b=3)],
    "expire": [Step("choose", a=11), Step("choose", a=11), Step("expire", a=3)],
    "flush": [Step("observe_row", a=31, b=5, net=("lost",)), Step("flush")],
    "refresh": [Step("observe_row", a=25, b=5, net=("unanswered",)), Step("refresh")],
    "reopen": [Step("observe_row", a=25, b=5), Step("choose", a=11), Step("reopen")],
    "kill": [Step("observe_row", a=25, b=5), Step("choose", a=11), Step("kill")],
    "kill_server": [Step("observe_row", a=25, b=5), Step("kill_server")],
    "backup": [Step("observe_row", a=25, b=5), Step("backup")],
    "restore": [Step("backup"), Step("observe_row", a=25, b=5), Step("restore", b=1)],
    "forget": [Step("observe_row", a=25, b=5), Step("forget")],
    "quarantine": [Step("observe_row", a=25, b=5), Step("quarantine")],
    "release": [Step("observe_row", a=25, b=5), Step("quarantine"), Step("observe_row", a=9), Step("quarantine", a=1)],
    "revoke": [Step("observe_row", a=25, b=5), Step("revoke")],
    "remake": [Step("observe_row", a=25, b=5), Step("remake", a=1)],
    "first_start": [Step("first_start")],
    "migrate": [Step("migrate")],
}


def test_every_history_keeps_its_books():
    found = run(range(IN_A_MINUTE), frozenset(OFF))
    assert not found.failed, [(outcome.seed, outcome.failure) for outcome in found.failed]
    assert found.n_histories == IN_A_MINUTE
    assert found.n_hits > IN_A_MINUTE / 2, "too few faults came for this to mean anything"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_times_as_many_histories_keep_their_books():
    found = run(range(IN_A_MINUTE, 11 * IN_A_MINUTE), frozenset(OFF))
    assert not found.failed, [(outcome.seed, outcome.failure) for outcome in found.failed]


def sweep(call: str, mode: str) -> tuple[int, list[str]]:
    """The call with this fault at its first step, at its second, and so on; how many there are, and what failed."""
    *before, last = CALLS[call]
    failures = []
    options = (Options(),) * 3  # every observation is an upload that is sent immediately
    with histories() as runner:
        for k in range(1000):
            step = Step(last.kind, last.who, last.a, last.b, Fault(mode, k, 0.3), None, last.net)
            outcome = runner.run(Plan(1, 1, options, (*before, step, Step("observe_row", a=17), Step("kill"))))
            if outcome.failure:
                failures.append(f"step {k}: {outcome.failure}")
            if outcome.n_hits == 0:
                return k, failures
    raise AssertionError("a call of a thousand steps?")


@pytest.mark.parametrize("call", CALLS)
def test_a_kill_at_any_step_of_any_call_loses_nothing(call):
    n_steps, failures = sweep(call, "kill")
    assert n_steps > 3
    assert not failures


@pytest.mark.parametrize("call", CALLS)
def test_a_failure_of_any_step_of_any_call_has_a_name_and_loses_nothing(call):
    n_steps, failures = sweep(call, "no space")
    assert n_steps > 1
    assert not failures


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["torn kill", "io error", "short write"])
@pytest.mark.parametrize("call", CALLS)
def test_any_other_fault_at_any_step_of_any_call_loses_nothing(call, mode):
    _, failures = sweep(call, mode)
    assert not failures


def test_a_seed_gives_the_same_history_in_any_process():
    """The same number of steps and faults, independently of string hashes."""
    script = "from tests.crash_model.__main__ import run; t = run(range(40, 60), frozenset()); print(t.n_steps, t.n_hits, [(o.seed, o.at) for o in t.failed])"  # noqa: E501
    printed = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(["src", "."])}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
        )
        printed.add(done.stdout)
    assert len(printed) == 1


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.name)
def test_a_fix_can_be_taken_out_of_the_source_as_it_is(tmp_path, fix):
    """So that `make crash-proof` stays valid when the source is edited."""
    for file in {file for file, _, _ in fix.edits}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(SOURCE / file, tmp_path / file)
    fix.plant(tmp_path)
    for file in {file for file, _, _ in fix.edits}:
        compile((tmp_path / file).read_text(encoding="utf-8"), file, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.name)
def test_histories_find_each_defect_whose_fix_is_taken_out(fix):
    """`make crash-proof`: seeds from 0 on, at most 4000 histories for each fix."""
    assert search(fix, first=0, n=4000) is not None
