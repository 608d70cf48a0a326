"""Slots: each process takes the first state directory that no other one uses."""

import asyncio
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import FormatError, InvalidParameter, Refused, StateDirInUse
from tests.live import running_server

X = np.eye(3)
N = 3


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server, and the tokens of its agents."""
    with running_server(tmp_path_factory.mktemp("server")) as server:
        server.add_model("news", dim=3, alpha=1e9)
        yield server, [server.add_agent("news", f"shop-{number}") for number in range(N)]


@pytest.fixture
def connect(site, tmp_path):
    server, tokens = site
    made = fb.slots(tmp_path / "state", n=N, token=tokens.__getitem__, wait_s=0.0)
    return partial(fb.connect, server.url, model="news", state_dir=made)


def test_each_process_gets_a_slot_of_its_own_and_the_first_that_is_free(connect):
    agents = [connect() for _ in range(N)]
    assert [agent.agent_id for agent in agents] == ["shop-0", "shop-1", "shop-2"]
    agents[1].close()
    agents[0].close()
    with connect() as first, connect() as second:
        assert (first.agent_id, second.agent_id) == ("shop-0", "shop-1")
    agents[2].close()


def test_when_all_are_taken_it_waits_and_then_says_so(connect, site):
    agents = [connect() for _ in range(N)]
    with pytest.raises(StateDirInUse, match="all 3 slots"):
        connect()
    for agent in agents:
        agent.close()


def test_a_slot_is_continued_where_the_process_before_ended(connect):
    with connect() as agent:
        agent.observe(X[0], 1.0)
        before = agent.status()
    with connect() as agent:
        assert agent.status().unsent == before.unsent == 1
        assert agent.status().incarnation == before.incarnation
        agent.flush(10.0)


CHILD = """
import sys
import fedbandit as fb

url, state, *tokens = sys.argv[1:]
made = fb.slots(state, n=len(tokens), token=tokens.__getitem__, wait_s=30.0)
agent = fb.connect(url, model="news", state_dir=made)
agent.observe([1.0, 0.0, 0.0], 1.0)
print(agent.agent_id, flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_its_slot_and_its_data_to_the_next(site, tmp_path):
    """In any order; a process that finds no slot waits for one."""
    server, tokens = site

    def start():
        command = [sys.executable, "-c", CHILD, server.url, str(tmp_path / "state"), *tokens]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    n_before = server.show("news")["n_obs"]
    running = {process.stdout.readline().strip(): process for process in [start() for _ in range(N)]}
    assert set(running) == {"shop-0", "shop-1", "shop-2"}
    n_started = N
    for victim in ("shop-1", "shop-0", "shop-2", "shop-1"):
        successor = start()  # all slots are taken: it waits
        running[victim].kill()
        running[victim].communicate()
        assert successor.stdout.readline().strip() == victim
        running[victim] = successor
        n_started += 1
    for process in running.values():
        process.kill()
        process.communicate()
    for number, token in enumerate(tokens):
        with fb.connect(server.url, model="news", token=token, state_dir=tmp_path / "state" / str(number)) as agent:
            agent.flush(10.0)
    assert server.show("news")["n_obs"] == n_before + n_started


def test_a_damaged_slot_is_left_as_it_is_and_the_next_one_is_taken(connect, tmp_path, caplog):
    (tmp_path / "state" / "0").mkdir(parents=True)
    (tmp_path / "state" / "0" / "journal.db").write_bytes(b"not a journal")
    with connect() as agent:
        assert agent.agent_id == "shop-1"
    assert "slot 0" in caplog.text
    assert (tmp_path / "state" / "0" / "journal.db").read_bytes() == b"not a journal"


def test_when_no_slot_is_sound_the_reason_is_told(connect, tmp_path):
    for number in range(N):
        (tmp_path / "state" / str(number)).mkdir(parents=True)
        (tmp_path / "state" / str(number) / "journal.db").write_bytes(b"not a journal")
    with pytest.raises(FormatError, match="not a journal"):
        connect()


def test_without_the_server_each_slot_has_the_name_of_its_agent(tmp_path):
    made = fb.slots(tmp_path / "state", n=2, token="token-{}".format, agent="shop-{}".format)
    options = {"model": "news", "state_dir": made, "offline_ok": True, "settings": {"dim": 3, "beta": 0.5}}
    with fb.connect("http://127.0.0.1:1", **options) as first, fb.connect("http://127.0.0.1:1", **options) as second:
        assert (first.agent_id, second.agent_id) == ("shop-0", "shop-1")


def test_each_slot_enrols_itself_once(site, tmp_path):
    server, _ = site
    made = server.call("POST", "/v1/models/news/enrolments", {"name_prefix": "web-", "max_uses": 2})
    options = {"model": "news", "enrol": made["secret"], "state_dir": fb.slots(tmp_path / "state", n=2)}
    for _ in range(2):  # the second time each slot has its agent and its token
        with fb.connect(server.url, **options) as first, fb.connect(server.url, **options) as second:
            names = first.agent_id, second.agent_id
            assert names[0] != names[1] and all(name.startswith("web-") for name in names)
    (listed,) = server.call("GET", "/v1/models/news/enrolments")["enrolments"]
    assert listed["n_used"] == 2


def test_an_error_of_another_kind_is_told_at_once(site, tmp_path):
    server, _ = site
    with pytest.raises(Refused):
        fb.connect(server.url, model="news", token="wrong", state_dir=fb.slots(tmp_path, n=4))


@pytest.mark.parametrize("changes", [{"n": 0}, {"n": 1.5}, {"wait_s": -1.0}, {"directory": 3}])
def test_slots_are_checked(changes):
    with pytest.raises(InvalidParameter):
        fb.slots(**{"directory": "state", "n": 2, **changes})


def test_an_event_loop_connects_in_a_slot_and_closes_what_it_opened(connect):
    async def application():
        async with fb.aconnect(connect.args[0], **connect.keywords) as agent:
            agent.observe(agent.choose(X), 1.0)
            await agent.aflush(10.0)
        with pytest.raises(fb.errors.Closed):
            agent.choose(X)
        again = await fb.aconnect(connect.args[0], **connect.keywords)
        await again.aclose()
        return agent.agent_id, again.agent_id

    assert asyncio.run(application()) == ("shop-0", "shop-0")
