"""A first start on a disk with too little room fails by name, wherever the room ends, and leaves no trap."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbandit.errors import JournalFailed
from fedbandit.sdk.decisions import DecisionRing
from tests.fire.disk import SmallDisk
from tests.sdk.helpers import make_hub, make_live


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk", megabytes=1)
    if disk.missing is not None:
        pytest.skip(disk.missing)
    yield disk
    disk.close()


def test_no_room_for_decisions_has_a_name(disk: SmallDisk) -> None:
    disk.fill(spare_bytes=0)
    with pytest.raises(JournalFailed, match=r"cannot be kept: .*No space left"):
        DecisionRing(disk.folder / "decisions", dim=3, incarnation="a", create=True)


@pytest.mark.parametrize("spare_kb", [0, 64, 128, 192])
def test_a_start_without_room_can_be_tried_again(disk: SmallDisk, spare_kb: int) -> None:
    disk.fill(spare_bytes=spare_kb << 10)
    with contextlib.suppress(JournalFailed):
        make_live(make_hub(), state_dir=disk.folder / "state", sync="inline").close()
    disk.free()
    with make_live(make_hub(), state_dir=disk.folder / "state", sync="inline") as agent:
        agent.observe([1.0, 2.0, 3.0], 1.0)
        assert agent.status().rounds == 1
