"""Real processes: killed, forked, and left to end on their own."""

import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from fedbandit.errors import ForkedProcess
from tests.sdk.child_process import observation
from tests.sdk.helpers import make_hub, make_live
from tests.sdk.stub import running_stub

X = np.eye(3)


def run_victim(url, model, token, state_dir, last, kill_after_s):
    """Lines that the victim printed before it was killed, or before it ended."""
    command = [sys.executable, "-m", "tests.sdk.child_process", url, model, token, str(state_dir), str(last)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        first = process.stdout.readline()  # it is at work now
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            process.kill()
        rest = process.stdout.read()
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return (first + rest).splitlines()


def kill_again_and_again(url, model, token, state_dir, last, n_kills, seed):
    """Kill at random moments; no booked observation may be missing after the next start."""
    rng = random.Random(seed)
    booked = 0
    for attempt in range(n_kills + 1):
        lines = run_victim(url, model, token, state_dir, last, rng.uniform(0.0, 0.15) if attempt < n_kills else None)
        _, n, n_pending = lines[0].split()
        assert booked <= int(n) <= booked + 1  # one may have been booked and not yet told
        assert int(n_pending) <= 1
        booked = max([int(n), *(int(line) for line in lines[1:] if line.isdigit())])
    assert booked == last and lines[-1].startswith("done")


def expected_sums(last, dim):
    rows, rewards = zip(*(observation(n, dim) for n in range(last)), strict=True)
    rows, rewards = np.array(rows), np.array(rewards)
    return rows.T @ rows, rows.T @ rewards, float(rewards.sum())


@pytest.mark.parametrize("alpha", [0.2, 100.0])
def test_an_agent_killed_at_random_moments_loses_and_doubles_nothing(tmp_path, alpha):
    hub = make_hub(alpha=alpha)
    with running_stub(hub) as stub:
        kill_again_and_again(stub.url, "local", stub.token, tmp_path / "state", 4000, n_kills=5, seed=1)
    Sigma, b, reward_sum = expected_sums(4000, 3)
    assert np.array_equal(hub.server.stats.Sigma, Sigma + np.eye(3))
    assert np.array_equal(hub.server.stats.b, b)
    assert hub.server.stats.n_obs == 4000 and hub.server.stats.reward_sum == reward_sum


def in_a_child(action):
    """What `action` raises or returns in a forked child, as text."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(action())
        except BaseException as error:  # noqa: BLE001 - told to the parent
            said = type(error).__name__
        os.write(sender, said.encode())
        os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    said = os.read(receiver, 1000).decode()
    os.close(receiver)
    return said


def test_a_closed_agent_leaves_its_directory_free_while_a_child_has_not_let_go_yet(tmp_path):
    with make_live(make_hub(), state_dir=tmp_path / "state") as agent:
        copy = os.dup(
            agent._durable.journal._lock_file
        )  # as a child has one from the fork until it runs for the first time
    try:
        make_live(make_hub(), state_dir=tmp_path / "state").close()
    finally:
        os.close(copy)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_and_its_parent_goes_on(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        decision = agent.choose(X)
        for action in (
            lambda: agent.choose(X),
            lambda: agent.observe(decision, 1.0),
            lambda: agent.flush(1.0),
            agent.refresh,
            agent.status,
            lambda: agent.predict(X),
        ):
            assert in_a_child(action) == ForkedProcess.__name__
        assert in_a_child(agent.close) == "None"  # nothing to close there
        assert in_a_child(lambda: agent._durable.journal._log.append(b"s")) == OSError.__name__  # its handle is gone
        agent.observe(decision, 1.0)
        agent.flush(5.0)
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
    try:
        make_live(hub, state_dir=tmp_path / "state").close()  # the child does not hold on to the directory
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert hub.server.stats.n_obs == 1


@pytest.mark.parametrize("journal", [True, False])
def test_the_interpreter_ends_quickly_with_a_dead_server(tmp_path, journal):
    program = f"""
import numpy as np
from tests.sdk.helpers import Way, make_hub, make_live
hub = make_hub()
way = Way(hub)
agent = make_live(way, state_dir={str(tmp_path / "state") if journal else None!r})
way.gate.clear()  # a request that hangs
for _ in range(10):
    agent.observe(agent.choose(np.eye(3)), 1.0)
print("end")
"""
    begun = time.monotonic()
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (finished.returncode, finished.stdout) == (0, "end\n"), finished.stderr
    assert "Traceback" not in finished.stderr
    assert time.monotonic() - begun < 10.0
    if journal:
        with make_live(make_hub(), state_dir=tmp_path / "state") as agent:
            agent.flush(5.0)
            assert agent.status().rounds == 10


def test_the_package_imports_no_network_until_somebody_connects():
    program = "import sys, fedbandit; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"urllib3", "sqlite3", "asyncio", "http.client"} & set(finished.stdout.split())
