"""Signal handlers raise inside calls, at any line: nothing is lost, nothing counts twice, and the agent goes on."""

import linecache
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedbandit
from fedbandit.errors import InvalidInput, JournalFailed
from fedbandit.sdk.journal.journal import Journal
from tests.sdk.helpers import as_if_killed, make_hub, make_live, wait_until

X = np.eye(3)
INF = float("inf")
SOURCE = str(Path(fedbandit.__file__).parent)
SERVER = str(Path("sdk", "in_process.py"))


class Interrupted(BaseException):
    """What a signal handler raises."""


class RaiseAt:
    """Raises at the n-th line that runs in the library, the server in the same process excepted.

    CPython runs no handler between the end of a `with` block and the release of its lock, nor at a `try:`, which is no
    instruction: these lines are not counted.
    """

    def __init__(self, n):
        self.left = n
        self.seen = set()

    def __call__(self, frame, event, _):
        name = frame.f_code.co_filename
        if not name.startswith(SOURCE) or self._is_server(frame):
            return None
        return self.line

    def _is_server(self, frame):
        while frame is not None:
            if frame.f_code.co_filename.endswith(SERVER):
                return True
            frame = frame.f_back
        return False

    def line(self, frame, event, _):
        if event == "line" and self.left is not None:
            place = (id(frame), frame.f_lineno)
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            is_safe = text == "try:" or (text.startswith("with ") and place in self.seen)
            self.seen.add(place)
            if not is_safe:
                self.left -= 1
                if self.left < 0:
                    self.left = None
                    raise Interrupted(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return self.line


def interrupted(n, work):
    """What `work` gave, or None, and whether it was interrupted at its n-th line."""
    trace = RaiseAt(n)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return work(), trace.left is None
    except Interrupted:
        return None, True
    finally:
        sys.settrace(before)


def total_of(hub, agent):
    """Sums of what the server, the upload in flight if it is not merged, and the buffer hold."""
    durable = agent._durable
    durable.finish()
    total, merged = hub.server.stats + durable.agent.local, hub.server.ledger.get("a")
    if durable.agent.in_flight is None or (merged is not None and merged.sequence == durable.agent.in_flight.sequence):
        return total
    return total + durable.agent.in_flight.stats


def require_conserved(hub, agent, seen):
    rows, rewards = np.array([x for x, _ in seen]).reshape(-1, 3), np.array([reward for _, reward in seen])
    total = total_of(hub, agent)
    assert agent.status().rounds == total.n_obs == len(seen)
    assert np.array_equal(total.Sigma, np.eye(3) + rows.T @ rows) and np.array_equal(total.b, rewards @ rows)


@pytest.mark.parametrize(
    ("place", "alpha"),
    [("memory", 0.0), ("memory", INF), ("fast", 0.0), ("fast", 5.0), ("fast", INF), ("strict", 5.0)],
)
def test_an_exception_at_any_line_of_observe(tmp_path, monkeypatch, place, alpha):
    """α = 0 exchanges in every call; α = 5 makes uploads now and then; ∞ fills the buffer's blocks of rows."""
    monkeypatch.setattr("fedbandit.sdk.journal.pending_ring.SLOTS", (4, 4))
    monkeypatch.setattr("fedbandit.sdk.journal.journal.MAX_LOG_BYTES", 1000)  # the log is made anew all the time
    hub = make_hub(alpha=alpha)
    options = {} if place == "memory" else {"state_dir": tmp_path / "state", "durability": place}
    rng, seen, n, whole = np.random.default_rng(1), [], 0, 0
    with make_live(hub, sync="inline", **options) as agent:
        while whole < 3:
            row, reward = rng.integers(-3, 4, size=(1, 3)).astype(float), float(rng.integers(-3, 4))
            decision = agent.choose(row)
            _, was_interrupted = interrupted(n, lambda d=decision, r=reward: agent.observe(d, r))
            whole = 0 if was_interrupted else whole + 1
            if decision.id in agent.pending:
                assert was_interrupted
                agent.observe(decision, reward)
            seen.append((decision.x, reward))
            with pytest.raises(fedbandit.errors.AlreadyObserved):
                agent.observe(decision, reward)
            require_conserved(hub, agent, seen)
            n += 1
        assert n > 30
        agent.flush(5.0)
        assert hub.server.stats.n_obs == len(seen)
        copy = None if place == "memory" else as_if_killed(tmp_path / "state", tmp_path / "copy")
    if copy is not None:
        with make_live(hub, state_dir=copy, sync="inline") as again:
            assert again.status().rounds == len(seen) and len(again.pending) == 0


@pytest.mark.parametrize("place", ["memory", "journal"])
def test_an_exception_at_any_line_of_choose_and_of_a_batch(tmp_path, monkeypatch, place):
    """The ring is so small that it is emptied into the table all the time."""
    monkeypatch.setattr("fedbandit.sdk.journal.pending_ring.SLOTS", (2, 2))
    hub = make_hub(alpha=5.0)
    options = {} if place == "memory" else {"state_dir": tmp_path / "state"}
    seen, n, whole = [], 0, 0
    with make_live(hub, sync="inline", **options) as agent:
        while whole < 3:
            decision, in_choose = interrupted(n, lambda: agent.choose(X))
            rounds = agent.status().rounds
            _, in_batch = interrupted(n, lambda: agent.partial_fit(X[:2], [1.0, 2.0]))
            if agent.status().rounds > rounds:
                seen += [(X[0], 1.0), (X[1], 2.0)]
            if decision is not None and n % 3 == 0:
                agent.observe(decision, 1.0)
                seen.append((decision.x, 1.0))
            require_conserved(hub, agent, seen)
            whole = 0 if in_choose or in_batch else whole + 1
            n += 1
        agent.pending.settle(0.0)
        copy = None if place == "memory" else as_if_killed(tmp_path / "state", tmp_path / "copy")
        rounds = agent.status().rounds
    if copy is not None:
        with make_live(hub, state_dir=copy, sync="inline") as again:
            assert again.status().rounds == rounds
            again.pending.settle(0.0)  # decisions that were written down, and whose call never returned them
        with make_live(hub, state_dir=copy, sync="inline") as again:
            assert len(again.pending) == 0


def test_real_signals_at_any_time(tmp_path):
    """A timer of microseconds, its handler raising: what a web server's time limit does to a request."""
    hub = make_hub(alpha=5.0)
    rng, seen, n_raised, is_armed = np.random.default_rng(1), [], 0, [False]

    def handler(*_):
        if is_armed[0]:
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
            end = time.monotonic() + 3.0
            while time.monotonic() < end or n_raised < 20:
                decision, reward = agent.choose(X), float(rng.integers(-3, 4))
                try:
                    is_armed[0] = True
                    signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-6, 400e-6)))
                    agent.observe(decision, reward)
                    is_armed[0] = False
                except Interrupted:
                    n_raised += 1
                finally:
                    is_armed[0] = False
                if decision.id in agent.pending:
                    agent.observe(decision, reward)
                seen.append((decision.x, reward))
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            require_conserved(hub, agent, seen)
            copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    with make_live(hub, state_dir=copy, sync="inline") as again:
        assert again.status().rounds == len(seen) and len(again.pending) == 0


def test_an_upload_that_an_interrupted_call_made_travels_all_the_same(tmp_path):
    hub = make_hub(alpha=0.0)
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        for n in range(200):
            interrupted(n, lambda: agent.observe(X[0], 1.0))
        wait_until(lambda: agent.status().in_flight == 0 and hub.server.stats.n_obs == agent.status().rounds)


def test_a_handler_that_calls_instead_of_raising_is_told_so(tmp_path):
    hub = make_hub(alpha=float("inf"))
    told = []

    def call(frame, event, _):
        if event == "line" and not told and frame.f_code.co_name == "_gather":
            try:
                agent.observe(X[1], 5.0)
            except InvalidInput as error:
                told.append(error)
        return call

    with make_live(hub, state_dir=tmp_path / "state") as agent:
        before = sys.gettrace()
        sys.settrace(call)
        try:
            agent.observe(X[0], 1.0)
        finally:
            sys.settrace(before)
        assert len(told) == 1 and "signal handler" in str(told[0])
        assert agent.status().rounds == 1 and agent._durable.agent.local.reward_sum == 1.0


def test_an_upload_that_is_kept_already_and_still_in_flight_goes_into_a_new_incarnation_once(tmp_path):
    """An exception between the two steps of taking an answer leaves it in both places."""
    with make_live(make_hub(alpha=float("inf")), state_dir=tmp_path / "state", sync="inline") as agent:
        for _ in range(3):
            agent.observe(X[0], 1.0)
        durable = agent._durable
        durable.begin_incarnation([durable.agent.upload_now()])
        assert (durable.n_unsent, durable.agent.in_flight) == (3, None)
        assert durable.agent.local.b.tolist() == [3.0, 0.0, 0.0]


def test_an_exception_just_after_the_log_has_an_observation_counts_it_once(tmp_path, monkeypatch):
    book = Journal.book

    def booked_and_interrupted(journal, *observation):
        book(journal, *observation)
        raise Interrupted

    hub = make_hub(alpha=INF)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        decision = agent.choose(X)
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "book", booked_and_interrupted)
            with pytest.raises(Interrupted):
                agent.observe(decision, 1.0)
        assert decision.id not in agent.pending
        require_conserved(hub, agent, [(decision.x, 1.0)])
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy, sync="inline") as again:
        assert again.status().rounds == 1 and len(again.pending) == 0


@pytest.mark.parametrize("durability", ["fast", "strict"])
def test_a_kill_after_an_exception_at_any_line_of_observe_finds_what_the_process_counted(tmp_path, durability):
    """An exception between the write of a record and the note of its end must not leave the record for a restart."""
    hub, n, was_interrupted = make_hub(alpha=INF), 0, True
    with make_live(hub, state_dir=tmp_path / "state", sync="inline", durability=durability) as agent:
        while was_interrupted:
            _, was_interrupted = interrupted(n, lambda: agent.observe(X[0], 1.0))
            copy = as_if_killed(tmp_path / "state", tmp_path / f"copy-{n}")
            with make_live(hub, state_dir=copy, sync="inline") as again:
                assert again.status().rounds == agent.status().rounds, f"after an exception at line {n}"
            n += 1
    assert n > 30


def test_a_record_that_cannot_be_taken_back_is_written_over(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    hub = make_hub(alpha=INF)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline", durability="strict") as agent:
        with monkeypatch.context() as patch:
            patch.setattr("os.fdatasync", fail)
            patch.setattr("os.ftruncate", fail)
            for _ in range(2):
                with pytest.raises(JournalFailed, match="Input/output"):
                    agent.observe(X[0], 1.0)
        agent.observe(X[1], 2.0)
        assert agent.status().rounds == 1
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy, sync="inline") as again:
        assert again.status().rounds == 1 and again._durable.agent.local.b.tolist() == [0.0, 2.0, 0.0]


def test_a_refresh_after_an_answer_was_interrupted_misses_nothing(tmp_path, monkeypatch):
    """The server has the upload and its first answer was lost; an exception comes while the second one is adopted."""

    def raise_at_once(*_):
        raise Interrupted

    hub = make_hub(alpha=INF)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        hub.receive(agent._durable.agent.upload_now())
        agent.refresh()
        with monkeypatch.context() as patch:
            patch.setattr("fedbandit.sdk.durable_agent.DurableAgent._take", raise_at_once)
            with pytest.raises(Interrupted):
                agent._client.exchange(everything=True)
        agent.refresh()  # the server's state is the same as before the exchange
        agent.flush(5.0)
    assert hub.server.stats.n_obs == 1
