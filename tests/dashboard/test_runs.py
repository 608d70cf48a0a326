"""Visitors' simulations: checked, one at a time, a short queue, and gone with the server."""

import asyncio
import os

import pytest

from fedbandit.dashboard import runs as queue
from fedbandit.dashboard.runs import Runs
from fedbandit.dashboard.spec import LINES, ROUNDS, Spec, spec_from
from fedbandit.dashboard.worker import play
from fedbandit.errors import InvalidParameter, Overloaded
from tests.dashboard.test_live import Log

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Quiet(Log):
    def info(self, *_, **__):
        pass


@pytest.fixture
def runs():
    return Runs(Quiet())


@pytest.mark.parametrize(
    "fields",
    [
        {"world": "mars"},
        {"agents": "1"},
        {"agents": "1000000"},
        {"agents": "many"},
        {"alpha": "0"},
        {"alpha": "nan"},
        {"alpha": "inf"},
        {"rounds": "999999999"},
        {"seed": "-1"},
    ],
)
def test_a_question_that_cannot_be_asked_is_told(fields):
    with pytest.raises(InvalidParameter, match="expected"):
        spec_from(fields)


def test_the_same_question_has_the_same_name():
    assert spec_from({"agents": "15"}).id == Spec().id != spec_from({"agents": "16"}).id


def test_all_algorithms_play_the_same_rounds_and_alone_nobody_talks():
    steps = [step for some in play(Spec(n_agents=3, n_rounds=ROUNDS[0])) for step in some]
    last = {step.line: step for step in steps if step.round == ROUNDS[0]}
    assert set(last) == set(LINES)
    assert last["oful-independent"].messages == 0
    assert last["fedlinucb-more"].messages < last["fedlinucb"].messages < last["dislinucb"].messages
    assert last["fedlinucb"].regret < last["oful-independent"].regret
    assert len(steps) <= 90 * len(LINES)


async def over(run):
    async with asyncio.timeout(120):
        while not run.is_over:
            await asyncio.sleep(0.005)


async def test_a_run_reports_while_it_goes_and_is_remembered(runs):
    spec = Spec(n_agents=2, n_rounds=ROUNDS[0])
    run = runs.start(spec)
    assert runs.start(spec) is run
    await over(run)
    assert (run.state, run.progress, run.problem) == ("done", 1.0, "")
    assert set(run.steps) == set(LINES)
    assert runs.find(spec.id) is run and runs.find("unheard-of") is None


async def test_the_queue_is_short_and_runs_come_one_after_the_other(runs, monkeypatch):
    seen = []

    async def follow(self, run):
        seen.append([other.state for other in self._runs.values()].count("running"))
        await asyncio.sleep(0.01)
        run.state = "done"

    monkeypatch.setattr(Runs, "_follow", follow)
    made = [runs.start(Spec(seed=seed)) for seed in range(queue.MAX_WAITING)]
    with pytest.raises(Overloaded):
        runs.start(Spec(seed=99))
    await asyncio.gather(*map(over, made))
    assert seen == [1] * queue.MAX_WAITING
    for seed in range(100, 100 + 3 * queue.MAX_KEPT):
        await over(runs.start(Spec(seed=seed)))
    assert len(runs._runs) <= queue.MAX_KEPT


async def test_a_run_that_takes_too_long_is_stopped_and_may_be_tried_again():
    runs = Runs(Quiet(), timeout_s=0.2)
    spec = Spec(n_rounds=ROUNDS[-1])
    run = runs.start(spec)
    await over(run)
    assert run.state == "failed" and "stopped" in run.problem
    again = runs.start(spec)
    assert again is not run
    await over(again)


async def test_the_worker_does_not_see_the_servers_secrets(monkeypatch):
    monkeypatch.setenv("FEDBANDIT_ADMIN_TOKEN", "secret")
    assert "FEDBANDIT_ADMIN_TOKEN" not in queue._environment()
    assert queue._environment()["OMP_NUM_THREADS"] == "1"


async def test_the_worker_ends_when_its_server_is_gone():
    import sys

    import msgspec

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fedbandit.dashboard.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )
    process.stdin.write(msgspec.json.encode(Spec(n_rounds=ROUNDS[-1])) + b"\n")
    await process.stdout.readline()
    process.stdin.close()
    async with asyncio.timeout(30):
        await process.stdout.read()
        assert await process.wait() == 1


def test_a_form_leads_to_the_run_and_a_bad_one_back_with_a_reason(open_window):
    answer = open_window.request("POST", "/simulation", token="", data={"agents": "3", "rounds": "2000"})
    assert (answer.status_code, answer.headers["location"].split("=")[0]) == (303, "/simulation?run")
    text = open_window.show(answer.headers["location"], token="")
    assert "before this one" in text or "Playing" in text
    answer = open_window.request("POST", "/simulation", token="", data={"agents": "0"})
    assert "expected 2 to 60 agents" in open_window.show(answer.headers["location"], token="")
    assert "not remembered any more" in open_window.show("/simulation?run=0000", token="")
