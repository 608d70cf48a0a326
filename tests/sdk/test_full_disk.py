"""A first start on a disk with too little room fails by name, wherever the room ends, and leaves no trap."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbandit.errors import JournalFailed
from fedbandit.sdk.journal.pending_ring import PendingRing
from tests.chaos.disk import SmallDisk
from tests.sdk.helpers import as_if_killed, make_hub, make_live


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
        PendingRing(disk.folder / "decisions", dim=3, incarnation="a", create=True)


@pytest.mark.parametrize("spare_kb", [0, 64, 128, 192])
def test_a_start_without_room_can_be_tried_again(disk: SmallDisk, spare_kb: int) -> None:
    disk.fill(spare_bytes=spare_kb << 10)
    with contextlib.suppress(JournalFailed):
        make_live(make_hub(), state_dir=disk.folder / "state", sync="inline").close()
    disk.free()
    with make_live(make_hub(), state_dir=disk.folder / "state", sync="inline") as agent:
        agent.observe([1.0, 2.0, 3.0], 1.0)
        assert agent.status().rounds == 1


@pytest.mark.parametrize("durability", ["fast", "strict"])
def test_observations_that_find_no_room_are_refused_whole_and_the_others_survive(
    disk: SmallDisk, tmp_path: Path, durability: str
) -> None:
    hub = make_hub(alpha=float("inf"))
    n_booked, refusals = 0, []
    with make_live(hub, state_dir=disk.folder / "state", sync="inline", durability=durability) as agent:
        for n_spare in (0, 4096, 8192):
            disk.fill(spare_bytes=n_spare)
            for _ in range(300):
                try:
                    agent.observe([1.0, 2.0, 3.0], 1.0)
                    n_booked += 1
                except JournalFailed as error:
                    refusals.append(str(error))
            disk.free()
            agent.observe([1.0, 2.0, 3.0], 1.0)
            n_booked += 1
        assert agent.status().rounds == n_booked
        assert refusals and all("No space left" in words for words in refusals)
        copy = as_if_killed(disk.folder / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy) as again:
        assert again.status().rounds == n_booked
