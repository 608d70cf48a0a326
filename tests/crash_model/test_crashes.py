"""Any history of lost, late, repeated and reordered messages, with kills at every step between two durable ones.

hypothesis looks for a history after which something is lost, doubled, changed or stuck. Fleets with a defect made on
purpose show that it would be found.
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fedbandit.sdk.journal import journal
from fedbandit.sdk.journal.layout import write_position
from tests.crash_model.fleet import Fleet
from tests.crash_model.parts import ServerBox, copy_to

NAMES = st.sampled_from(["a", "b"])
NUMBERS = st.integers(-3, 3).map(float)
FAULTS = st.lists(st.sampled_from(["none", "lost", "late", "unanswered", "twice", "old answer"]), max_size=2).map(tuple)
KILL_AGENT = st.none() | st.integers(0, 30)
KILL_SERVER = st.none() | st.integers(0, 24)


class Crashes(RuleBasedStateMachine):
    """The fleet, driven by hypothesis."""

    make_fleet = Fleet

    @initialize(n_kept=st.sampled_from([1000, 1000, 2, 0]), durability=st.sampled_from(["fast", "fast", "strict"]))
    def begin(self, n_kept, durability):
        self.fleet = self.make_fleet(n_kept=n_kept, durability=durability)

    @rule(name=NAMES, x=st.tuples(NUMBERS, NUMBERS), reward=NUMBERS, by_choice=st.booleans(), faults=FAULTS,
          kill_agent=KILL_AGENT, kill_server=KILL_SERVER)  # fmt: skip
    def observe(self, name, x, reward, by_choice, faults, kill_agent, kill_server):
        self.fleet.server.kill_at = kill_server
        self.fleet.observe(name, list(x), reward, by_choice=by_choice, faults=faults, kill_at=kill_agent)
        self.fleet.server.kill_at = None

    @rule(name=NAMES, faults=FAULTS, kill_agent=KILL_AGENT, kill_server=KILL_SERVER)
    def flush(self, name, faults, kill_agent, kill_server):
        self.fleet.server.kill_at = kill_server
        self.fleet.do(name, lambda agent: agent._client.exchange(everything=True), faults=faults, kill_at=kill_agent)
        self.fleet.server.kill_at = None

    @rule(name=NAMES, kill_agent=KILL_AGENT)
    def refresh(self, name, kill_agent):
        self.fleet.do(name, lambda agent: agent.refresh(), kill_at=kill_agent)

    @rule(data=st.data(), kill_server=KILL_SERVER)
    def the_network_brings_old_messages(self, data, kill_server):
        """In any order, one of each agent in a batch, to the current server."""
        fleet = self.fleet
        for name in ("a", "b"):
            theirs = [body for sender, body in fleet.bodies if sender == name]
            if theirs:
                self.old[name] = data.draw(st.sampled_from(theirs))
        fleet.server.kill_at = kill_server
        fleet.deliver(list(self.old.items()))
        fleet.server.kill_at = None

    @rule(name=NAMES, power_cut=st.booleans(), cut=st.booleans(), kill_again_at=KILL_AGENT)
    def kill_an_agent(self, name, power_cut, cut, kill_again_at):
        self.fleet.wires[name].cut = cut
        self.fleet.restart(name, power_cut=power_cut, kill_at=kill_again_at)

    @rule()
    def kill_the_server(self):
        self.fleet.server.kill()

    @rule(name=NAMES, cut=st.booleans())
    def cut_or_mend_a_line(self, name, cut):
        self.fleet.wires[name].cut = cut

    @rule(name=NAMES, kill_at=KILL_SERVER)
    def forget(self, name, kill_at):
        self.fleet.up()
        self.fleet.forget(name, kill_at=kill_at)

    @rule()
    def backup(self):
        self.fleet.up()
        self.fleet.backup()

    @precondition(lambda self: self.fleet.saved is not None)
    @rule()
    def restore(self):
        self.fleet.restore()
        self.old.clear()

    @property
    def old(self):
        return self.__dict__.setdefault("_old", {})

    @invariant()
    def nothing_is_lost_or_doubled(self):
        if hasattr(self, "fleet"):
            self.fleet.check()

    def teardown(self):
        if hasattr(self, "fleet"):
            try:
                if not self.fleet.is_stuck:
                    self.fleet.settle()
            finally:
                self.fleet.close()


def test_an_upload_that_an_answer_made_due_is_on_disk_before_it_travels():
    """hypothesis found it: such an upload was saved with the answer, not synced, and a power cut could change it."""
    fleet = Fleet(n_kept=0)
    try:
        fleet.observe("a", [0.0, 1.0], 1.0, by_choice=False, faults=("unanswered",))
        fleet.wires["a"].cut = True
        fleet.observe("a", [3.0, 3.0], 1.0, by_choice=False)
        fleet.wires["a"].cut = False
        fleet.do("a", lambda agent: agent._client.exchange())  # answers the first upload, and the second becomes due
        fleet.do("a", lambda agent: agent._client.exchange(), faults=("unanswered",))
        fleet.restart("a", power_cut=True)
        assert len(fleet.accounting.seen["a"]) == 2
        fleet.settle()
    finally:
        fleet.close()


CALM = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]


def test_every_history_keeps_every_observation_once():
    run_state_machine_as_test(
        Crashes, settings=settings(max_examples=60, stateful_step_count=20, deadline=None, suppress_health_check=CALM)
    )


# -- the test can fail: inserted defects


class AnswersBeforeItIsDurable(ServerBox):
    """A kill reverts the last batch, although it was answered."""

    def exchange(self, requests):
        before = copy_to(self.directory, self.folder / "before")
        answers = super().exchange(requests)
        self.durable = before if answers is not None else None
        return answers

    def kill(self):
        if self.store is not None:
            self._replace_by(getattr(self, "durable", None) or self.directory)
            self.durable = None


class HastyServer(Fleet):
    def make_server(self):
        return AnswersBeforeItIsDurable(self.folder)


class SendsUnderANewSequence(Fleet):
    """After a failure the upload returns to the buffer and is sent again as the next one."""

    def do(self, name, work, **trouble):
        whole = super().do(name, work, **trouble)
        durable = self.agents[name]._durable
        if whole and durable.agent.in_flight is not None:
            durable._gather_batch(durable.agent.in_flight.stats)
            durable.agent.in_flight = None
            durable.save()
        return whole


class SnapshotDoesNotSayHowFarItGoes(Fleet):
    """What the snapshot has is replayed on top of it."""

    @contextmanager
    def watching(self, wire):
        def write_once(db, position):
            if db.execute("SELECT count(*) FROM position").fetchone() == (0,):
                write_position(db, position)

        with super().watching(wire), patch.object(journal, "write_position", write_once):
            yield


class StrictDoesNotWait(Fleet):
    """An observation is confirmed before it is on disk."""

    def __init__(self, **options):
        super().__init__(**{**options, "durability": "strict"})

    @contextmanager
    def watching(self, wire):
        with super().watching(wire), patch.object(wire.files, "fdatasync", lambda handle: None):
            yield


DEFECTS = [
    HastyServer,
    SendsUnderANewSequence,
    SnapshotDoesNotSayHowFarItGoes,
    StrictDoesNotWait,
]


@pytest.mark.parametrize("fleet", DEFECTS)
def test_a_defect_made_on_purpose_is_found(fleet):
    broken = type("Broken", (Crashes,), {"make_fleet": fleet})
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            broken,
            settings=settings(
                max_examples=400,
                stateful_step_count=20,
                deadline=None,
                derandomize=True,
                database=None,
                report_multiple_bugs=False,
                suppress_health_check=CALM,
                phases=[Phase.generate],
            ),
        )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thousands_of_histories_keep_every_observation_once():
    run_state_machine_as_test(
        Crashes, settings=settings(max_examples=3000, stateful_step_count=30, deadline=None, suppress_health_check=CALM)
    )
