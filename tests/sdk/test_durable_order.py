"""What must be on disk, or in the journal, before the next thing happens; and servers that went back."""

import os
from pathlib import Path

import numpy as np
import pytest

import fedbandit
from fedbandit.errors import NotReachable
from fedbandit.sdk import open_agent
from fedbandit.sdk.journal import journal as journal_module
from fedbandit.sdk.journal import observation_log
from fedbandit.wire.codec import decode_request
from tests.sdk.helpers import Way, as_if_killed, make_hub, make_live

X = np.eye(3)
ONE_UPLOAD = 96 / (1 << 20)  # megabytes that three features take


def test_a_server_that_went_back_gives_its_older_model(tmp_path):
    hub = make_hub(alpha=0.0)
    older = hub.server.to_bytes()
    with make_live(hub, state_dir=tmp_path, sync="inline") as agent:
        with open_agent(hub.transport("b"), model="local", sync="inline") as other:
            other.observe(X[0], 1.0)
        agent.refresh()
        assert agent.model_version == 1 and agent.predict(X)[0] > 0.4
        hub.server = fedbandit.load(older)
        agent.refresh()
        assert agent.model_version == 0 and agent.predict(X)[0] == 0.0


def test_an_upload_that_nothing_triggered_is_saved_before_it_travels(tmp_path):
    """The server merges it, the answer is lost, the process is killed: the next one must send the same bytes."""
    hub = make_hub(alpha=float("inf"))
    way = Way(hub)
    with make_live(way, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        way.faults.append("lost reply")
        with pytest.raises(NotReachable):
            agent._client.exchange(everything=True)  # one try, however long the disk takes
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    again_way = Way(hub)
    with make_live(again_way, state_dir=copy, sync="inline") as again:
        again.observe(X[1], 1.0)
        again.flush(5.0)
    first, second = decode_request(way.bodies[0]), decode_request(again_way.bodies[0])
    assert (first.sequence, first.digest) == (second.sequence, second.digest)
    assert hub.server.stats.n_obs == 2


@pytest.mark.parametrize("n_kept", [1, 2, 3])
def test_as_many_uploads_are_kept_as_there_is_room_for(tmp_path, n_kept):
    hub = make_hub(alpha=0.0)
    backups = []
    with make_live(hub, state_dir=tmp_path, sync="inline", keep_mb=n_kept * ONE_UPLOAD) as agent:
        for _ in range(5):
            backups.append(hub.server.to_bytes())
            agent.observe(X[0], 1.0)
        hub.server = fedbandit.load(backups[-n_kept])
        agent.refresh()
        assert hub.server.stats.n_obs == 5
        hub.server = fedbandit.load(backups[-n_kept - 1])
        with pytest.raises(fedbandit.errors.Refused, match=f"has kept the last {n_kept}"):
            agent.refresh()


class Watched:
    """The module `os`, which notes syncs and the renaming of files in their order, and does them."""

    def __init__(self, events):
        self.events = events

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in ("fsync", "fdatasync"):
            return real
        return lambda handle: (
            self.events.append(Path(f"/proc/self/fd/{handle}").readlink().name),
            real(handle),
        )[1]


def test_the_snapshot_is_on_disk_before_the_log_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_LOG_BYTES", 200)
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path, sync="inline") as agent:
        for _ in range(10):
            agent.observe(X[0], 1.0)
        agent._durable.save()
        events = []
        watched = Watched(events)
        monkeypatch.setattr(journal_module, "os", watched)
        monkeypatch.setattr(observation_log, "os", watched)
        agent._durable.journal.tidy()
        monkeypatch.undo()
        assert events.index("journal.db-wal") < events.index("observations.new")


@pytest.mark.parametrize("durability", ["fast", "strict"])
def test_strict_waits_for_the_disk_and_fast_does_not(tmp_path, monkeypatch, durability):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path, sync="inline", durability=durability) as agent:
        events = []
        monkeypatch.setattr(observation_log, "os", Watched(events))
        for n in range(3):
            agent.observe(X[0], 1.0)
            assert events == ["observations"] * (n + 1 if durability == "strict" else 0)
        agent.partial_fit(X, [1.0, 1.0, 1.0])
        assert len(events) == (4 if durability == "strict" else 0)
        monkeypatch.undo()
        (level,) = agent._durable.journal._db.execute("PRAGMA synchronous").fetchone()
        assert level == (2 if durability == "strict" else 1)  # FULL, NORMAL
