"""Histories of a whole fleet in one process: nothing is lost, counted twice, changed or stuck under any fault.

`python -m tests.crash_model` runs more of them, and `--replay SEED` shows one and its shortest form.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from unittest.mock import patch

import pytest

from fedbandit.algorithms.epochs import AgentEpoch
from fedbandit.core.drift import Restart
from fedbandit.core.personal import Auto, Fixed
from fedbandit.service.exchange.epochs import EpochState
from fedbandit.service.exchange.ledger import Fold
from fedbandit.service.stores import rows
from tests.crash_model.__main__ import run
from tests.crash_model.device import Options
from tests.crash_model.history import OFF, Plan, histories
from tests.crash_model.reverted import FIXES, SOURCE, search
from tests.crash_model.seams import Fault
from tests.crash_model.steps import Step

IN_A_MINUTE = 800
PERSONAL = 60  # histories of each kind
WITH_RESTARTS, WITH_BLOCKS, WITH_BOTH = 150, 100, 30
# Rewards of histories do not depend on rows: with so little noise assumed, agents and server often find a change.
DRIFT = Restart(noise_scale=1.0, agent_block=4, server_block=8, n_levels=2)
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
    "restart_model": [Step("observe_row", a=25, b=5), Step("restart_model")],
}


def test_every_history_keeps_its_books():
    found = run(range(IN_A_MINUTE), frozenset(OFF))
    assert not found.failed, [(outcome.seed, outcome.failure) for outcome in found.failed]
    assert found.n_histories == IN_A_MINUTE
    assert found.n_hits > IN_A_MINUTE / 2, "too few faults came for this to mean anything"


@pytest.mark.parametrize("personal", [Auto(), Fixed(1.0)], ids=["auto", "fixed"])
def test_every_history_of_agents_with_parameters_of_their_own_keeps_its_books(personal):
    found = run(range(10_000, 10_000 + PERSONAL), frozenset(OFF), personal=personal)
    assert not found.failed, [(outcome.seed, outcome.failure) for outcome in found.failed]
    assert found.n_hits > PERSONAL / 2


def test_every_history_with_a_control_group_counts_each_reward_in_its_group_once():
    found = run(range(20_000, 20_000 + PERSONAL), frozenset(OFF), control=0.4)
    assert not found.failed, [(outcome.seed, outcome.failure) for outcome in found.failed]
    assert found.n_hits > PERSONAL / 2


def test_every_history_of_a_model_that_restarts_counts_what_is_merged_and_what_is_discarded():
    """Operators, agents and the server restart the model; merged + discarded + unsent = observed after every step."""
    found = run(range(30_000, 30_000 + WITH_RESTARTS), frozenset(OFF), drift=DRIFT)
    assert not found.failed, [(outcome.seed, outcome.failure) for outcome in found.failed]
    assert found.n_hits > WITH_RESTARTS / 2


@pytest.mark.parametrize(
    ("model", "n"),
    [({}, WITH_BLOCKS), ({"personal": Auto()}, WITH_BOTH), ({"drift": DRIFT}, WITH_BOTH)],
    ids=["plain", "personal", "drift"],
)
def test_every_history_of_a_model_with_blocks_keeps_its_books(model, n):
    found = run(range(40_000, 40_000 + n), frozenset(OFF), blocks=2, **model)
    assert not found.failed, [(outcome.seed, outcome.failure) for outcome in found.failed]
    assert found.n_hits > n / 2


def _reports_drops_again(self, n_rounds):
    n_dropped = self.n_dropped
    _sent(self, n_rounds)
    self.n_dropped = n_dropped


def _drops_without_count(self, download, agent):
    n_dropped = self.n_dropped
    _begin(self, download, agent)
    self.n_dropped = n_dropped


def _merges_any_epoch(self, epoch, alarm):
    return ""


_sent, _begin = AgentEpoch.sent, AgentEpoch.begin


@pytest.mark.parametrize(
    ("where", "name", "defect", "model"),
    [
        (AgentEpoch, "sent", _reports_drops_again, {"drift": DRIFT}),
        (AgentEpoch, "begin", _drops_without_count, {"drift": DRIFT}),
        (EpochState, "outcome_of", _merges_any_epoch, {"drift": DRIFT}),
        (rows, "restarted", lambda model: (model, model.settings.prior()), {"drift": DRIFT}),
        (Fold, "_fitted", lambda self, upload: upload._replace(numbers=upload.numbers[::-1].copy()), {"blocks": 2}),
    ],
    ids=[
        "drops reported again",
        "drops not counted",
        "old epochs merged",
        "same epoch after a restart",
        "other blocks",
    ],
)
def test_histories_find_a_defect_of_epochs_or_blocks(where, name, defect, model):
    with patch.object(where, name, defect):
        assert run(range(30_000, 30_040), frozenset(OFF), **model).failed


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
