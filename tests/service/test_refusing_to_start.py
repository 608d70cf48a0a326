"""A server that cannot begin lets nobody in, says why in one line, and ends."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from fedbandit.errors import StoreUnavailable
from fedbandit.service.stores.postgres import _store_errors
from tests.chaos.disk import SmallDisk
from tests.live import running_server


@pytest.mark.parametrize("spare_kb", [0, 36, 44])
def test_a_full_disk_is_one_line_and_nobody_was_let_in(tmp_path: Path, spare_kb: int) -> None:
    disk = SmallDisk(tmp_path / "disk", megabytes=8)
    if disk.missing is not None:
        pytest.skip(disk.missing)
    try:
        with running_server(disk.folder) as server:
            server.stop()
            server.log_path.unlink()
        disk.fill(spare_bytes=spare_kb << 10)  # for SQLite's index of its log, and little more
        environment = {**os.environ, "FEDBANDIT_ADMIN_TOKEN": "a-token-of-letters"}
        command = [sys.executable, "-m", "fedbandit.cli.serve", "--port", "0", "--data", str(server.data_dir)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    finally:
        disk.close()
    assert ended.returncode == 1 and ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("fedbandit: store_unavailable: the database failed: ")


async def failing(error: Exception) -> None:
    async with _store_errors():
        raise error


def test_the_words_of_postgresql_stay_on_one_line() -> None:
    error = asyncpg.CannotConnectNowError("not yet accepting connections\nDETAIL:  Recovery goes on.")
    with pytest.raises(StoreUnavailable, match=r"CannotConnectNowError: not yet .*; DETAIL:  Recovery goes on\.$"):
        asyncio.run(failing(error))
