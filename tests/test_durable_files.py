"""Locks, fsync and write-then-rename, on a real disk and between real processes."""

import os
import subprocess
import sys

import pytest

from fedbandit.durable_files import lock, publish, sync, sync_if_possible, unlock, write_whole

HOLDER = """
import pathlib, sys
from fedbandit.durable_files import lock
lock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_once_and_free_after_the_end_of_its_process(tmp_path):
    path = tmp_path / "lock"
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError):
            lock(path)
        child.kill()
    handle = lock(path)
    with pytest.raises(BlockingIOError):
        lock(path)
    unlock(handle)
    unlock(lock(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_is_whole_or_absent(tmp_path):
    path = tmp_path / "deep" / "x.json"
    write_whole(path, b"{}")
    assert path.read_bytes() == b"{}"
    with pytest.raises(TypeError):
        write_whole(tmp_path / "y", "not bytes")  # type: ignore[arg-type]
    assert [p.name for p in tmp_path.iterdir()] == ["deep"]


def test_a_draft_takes_the_place_of_the_old_file_only_when_it_is_on_disk(tmp_path, monkeypatch):
    path, draft = tmp_path / "x", tmp_path / "x.part"
    path.write_bytes(b"old")
    draft.write_bytes(b"new")

    def fail(handle):
        raise OSError("no disk")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        sync_if_possible(draft)
        with pytest.raises(OSError, match="no disk"):
            publish(draft, path)
    assert path.read_bytes() == b"old"
    publish(draft, path)
    assert path.read_bytes() == b"new" and not draft.exists()
    with pytest.raises(FileNotFoundError):
        sync(draft)
