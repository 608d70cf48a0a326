"""`restore` and a first start, killed before each operation on a file: the next start has the old store or the new."""

import asyncio
import errno
import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbandit.errors import StoreUnavailable
from fedbandit.service.admin import backup, operations
from fedbandit.service.container import make_container
from fedbandit.service.settings import ServerSettings
from fedbandit.service.stores.sqlite import replacement
from fedbandit.service.stores.sqlite import store as sqlite
from fedbandit.service.telemetry import make_logger
from tests.service.uploads import settings

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "sqlite3.connect"}


def killed_before(number: int, folder: Path, work: Callable[[], object]) -> bool:
    """Do the work in a process that is killed before its `number`-th operation in the folder; False: it ended."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            if event in EVENTS and str(folder) in os.fsdecode(str(arguments[0])):
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def write_store(folder: Path, model: str) -> None:
    """A store with one model, its last commit still in the log, as a killed server leaves it."""

    async def write() -> None:
        store = sqlite.SqliteStore(folder)
        await store.open()
        await store.create(settings(model), uid=model, now=0.0)
        os._exit(0)

    pid = os.fork()
    if pid == 0:
        asyncio.run(write())
    os.waitpid(pid, 0)
    assert (folder / "fedbandit.sqlite3-wal").stat().st_size > 0


def started(folder: Path) -> list[str]:
    """The models that a server would serve."""

    async def read() -> list[str]:
        store = sqlite.SqliteStore(folder)
        await store.open()
        try:
            return [model.settings.name for model in await store.models()]
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.fixture
def copy(tmp_path):
    write_store(tmp_path / "elsewhere", "new")
    backup.backup(tmp_path / "elsewhere", tmp_path / "copy.sqlite3")
    return tmp_path / "copy.sqlite3"


def test_a_restore_that_is_killed_anywhere_leaves_the_old_store_or_the_new(tmp_path, copy):
    seen, number = [], 0
    while True:
        number += 1
        data = tmp_path / f"data-{number}"
        write_store(data, "old")
        if not killed_before(number, data, lambda data=data: backup.restore(data, copy)):
            break
        found = started(data)
        assert found in (["old"], ["new"]), f"killed before operation {number}: {found}"
        kept = [path.parent.name for path in data.glob("before-restore-*/fedbandit.sqlite3")]
        assert kept == ([] if found == ["old"] else ["before-restore-1"])
        assert not list(data.glob("*.part"))
        seen.append(found[0])
    assert started(data) == ["new"]
    assert seen.count("old") >= 3 and seen.count("new") >= 3
    assert seen == sorted(seen, reverse=True)  # "old" up to one operation, "new" from it on


def test_the_old_store_is_whole_where_it_was_moved_to(tmp_path, copy):
    for number in range(8, 16):
        data = tmp_path / f"data-{number}"
        write_store(data, "old")
        killed_before(number, data, lambda data=data: backup.restore(data, copy))
        if started(data) == ["new"]:
            assert started(data / "before-restore-1") == ["old"]


def test_a_restore_that_was_killed_can_be_repeated(tmp_path, copy):
    number = 1
    while True:
        data = tmp_path / f"data-{number}"
        write_store(data, "old")
        if not killed_before(number, data, lambda data=data: backup.restore(data, copy)):
            break
        backup.restore(data, copy)
        assert started(data) == ["new"]
        assert any(started(aside) == ["old"] for aside in data.glob("before-restore-*"))
        number += 2


def test_a_restore_into_a_full_disk_leaves_the_store_as_it_was(tmp_path, copy, monkeypatch):
    write_store(tmp_path / "data", "old")

    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        backup.restore(tmp_path / "data", copy)
    assert not list((tmp_path / "data").glob("*.part"))
    assert started(tmp_path / "data") == ["old"]


def test_no_backup_is_made_of_a_store_whose_restore_was_interrupted(tmp_path, copy):
    write_store(tmp_path / "data", "old")
    (tmp_path / "data" / replacement.MARKER).write_text("before-restore-1")
    with pytest.raises(StoreUnavailable, match="interrupted"):
        backup.backup(tmp_path / "data", tmp_path / "second.sqlite3")


def test_a_damaged_marker_is_told(tmp_path):
    write_store(tmp_path / "data", "old")
    (tmp_path / "data" / replacement.MARKER).write_text("../elsewhere")
    with pytest.raises(StoreUnavailable, match="damaged"):
        started(tmp_path / "data")


def test_only_its_owner_can_read_a_backup_at_any_time(tmp_path):
    """Also while it is written: a process killed before each operation leaves no draft that others can read."""
    write_store(tmp_path / "data", "old")
    for number in range(1, 12):
        out = tmp_path / f"copies-{number}"
        out.mkdir()
        killed_before(number, out, lambda out=out: backup.backup(tmp_path / "data", out / "copy.sqlite3"))
        for path in out.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_first_start_that_is_killed_anywhere_can_be_repeated(tmp_path):
    number, n_killed = 1, 0
    while True:
        data = tmp_path / f"data-{number}"
        if not _first_start_killed(number, data):
            break
        n_killed += 1
        first = asyncio.run(_first_start(data))
        second = asyncio.run(_first_start(data, renew=True))
        assert second is not None and second != first
        assert started(data) == []
        number += 3
    assert n_killed > 5


async def _first_start(data: Path, *, renew: bool = False) -> str | None:
    container = make_container(ServerSettings(data=str(data)), make_logger("error"))
    await container.start()
    try:
        return await operations.first_admin_token(container, renew=renew)
    finally:
        await container.stop()


def _first_start_killed(number: int, data: Path) -> bool:
    """Killed before the `number`-th SQL statement."""
    pid = os.fork()
    if pid == 0:
        count = 0
        connect = sqlite.connect

        def statement(_: str) -> None:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(path: Path):
            connection = connect(path)
            connection.set_trace_callback(statement)
            return connection

        sqlite.connect = counted
        try:
            asyncio.run(_first_start(data))
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)
