"""The log of observations by itself: whatever becomes of its bytes, it yields what was written, less, or an error."""

import errno
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit.errors import FormatError, UnsupportedFormat
from fedbandit.sdk.journal import observation_log
from fedbandit.sdk.journal.observation_log import HEADER, ObservationLog, read_log

LOG_ID = b"sixteen bytes ok"
BODIES = st.lists(st.binary(max_size=40), max_size=8)


def write(folder: Path, bodies: list[bytes], *, strict: bool = False) -> tuple[bytes, list[int]]:
    """The bytes of a log with these records, and the position after each, beginning with none."""
    (folder / "journal.db").touch()
    log = ObservationLog.create(folder / "observations", log_id=LOG_ID, strict=strict)
    ends = [0]
    for body in bodies:
        log.append(body)
        ends.append(log.position)
    log.close()
    return (folder / "observations").read_bytes(), ends


def read(data: bytes, *, since: int = 0, lost_power: bool = False) -> list[bytes]:
    return read_log(data, log_id=LOG_ID, since=since, lost_power=lost_power, path=Path("log")).bodies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log")


@given(bodies=BODIES, data=st.data(), lost_power=st.booleans(), strict=st.booleans())
def test_any_beginning_of_the_bytes_yields_the_records_that_fit(folder, bodies, data, lost_power, strict):
    content, ends = write(folder, bodies, strict=strict)
    kept = data.draw(st.integers(HEADER.size, len(content)))
    n_fit = sum(HEADER.size + end <= kept for end in ends[1:])
    assert read(content[:kept], lost_power=lost_power) == bodies[:n_fit]
    with pytest.raises(FormatError):
        read(content[: HEADER.size - 1], lost_power=lost_power)


@given(bodies=BODIES, data=st.data(), lost_power=st.booleans(), strict=st.booleans())
def test_a_changed_byte_never_yields_another_record(folder, bodies, data, lost_power, strict):
    content, ends = write(folder, bodies, strict=strict)
    at = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[at] ^= data.draw(st.integers(1, 255))
    try:
        found = read(bytes(changed), lost_power=lost_power)
    except (FormatError, UnsupportedFormat):
        return
    assert at >= HEADER.size
    n_before = sum(HEADER.size + end <= at for end in ends[1:])
    assert found in (bodies[:n_before], bodies)  # all of them where the byte was padding
    if found != bodies and n_before + 1 < len(bodies):
        assert lost_power and not strict, "records after a hole are damage, unless a power cut explains it"


@given(bodies=BODIES, junk=st.binary(max_size=100), lost_power=st.booleans())
def test_what_follows_the_last_record_and_is_none_is_no_record(folder, bodies, junk, lost_power):
    content, _ = write(folder, bodies)
    assert read(content + junk, lost_power=lost_power) == bodies


@given(bodies=BODIES, data=st.data())
def test_a_log_is_read_from_any_record_on_and_can_begin_there(folder, bodies, data):
    content, ends = write(folder, bodies)
    n, m = sorted((data.draw(st.integers(0, len(bodies))), data.draw(st.integers(0, len(bodies)))))
    assert read(content, since=ends[n]) == bodies[n:]
    log, found = ObservationLog.open(
        folder / "observations", log_id=LOG_ID, since=ends[n], lost_power=False, strict=False
    )
    assert found == bodies[n:]
    log.begin_at(ends[n])
    log.append(b"one more")
    log.close()
    later = (folder / "observations").read_bytes()
    assert read(later, since=ends[n]) == [*bodies[n:], b"one more"]
    assert read(later, since=ends[m]) == [*bodies[m:], b"one more"]
    if ends[n] > 0:
        with pytest.raises(FormatError, match="does not go on"):
            read(later, since=0)


@given(bodies=BODIES, data=st.data(), strict=st.booleans())
def test_a_torn_log_goes_on_after_its_last_whole_record(folder, bodies, data, strict):
    content, _ = write(folder, bodies)
    kept = data.draw(st.integers(HEADER.size, len(content)))
    (folder / "observations").write_bytes(content[:kept])
    log, found = ObservationLog.open(folder / "observations", log_id=LOG_ID, since=0, lost_power=False, strict=strict)
    assert (folder / "observations").read_bytes() == content[:kept], "nothing is changed before it is ready"
    log.make_ready()
    log.append(b"after")
    log.close()
    assert read((folder / "observations").read_bytes()) == [*found, b"after"]


def test_a_log_shorter_than_the_snapshot_begins_anew_after_a_power_cut(tmp_path):
    content, ends = write(tmp_path, [b"one", b"two", b"three"])
    (tmp_path / "observations").write_bytes(content[: HEADER.size + ends[1]])
    options = {"log_id": LOG_ID, "since": ends[2], "strict": False}
    with pytest.raises(FormatError, match="does not go on"):
        ObservationLog.open(tmp_path / "observations", lost_power=False, **options)
    log, found = ObservationLog.open(tmp_path / "observations", lost_power=True, **options)
    assert found == []
    log.make_ready()
    log.append(b"four")
    log.close()
    assert read((tmp_path / "observations").read_bytes(), since=ends[2]) == [b"four"]


def test_a_record_of_another_place_or_journal_is_none(tmp_path):
    content, ends = write(tmp_path, [b"equal", b"equal"])
    first = content[HEADER.size : HEADER.size + ends[1]]
    assert read(content[: HEADER.size] + first + first) == [b"equal"]
    with pytest.raises(FormatError, match="does not belong"):
        read_log(content, log_id=b"another  journal", since=0, lost_power=True, path=Path("log"))


def test_a_record_that_is_written_in_part_is_taken_back(tmp_path):
    write(tmp_path, [b"before"])
    path = tmp_path / "observations"
    log, _ = ObservationLog.open(path, log_id=LOG_ID, since=0, lost_power=False, strict=False)
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, limits[1]))  # the kernel writes 50 bytes, and says so
        with pytest.raises(OSError, match="No space left") as caught:
            log.append(bytes(100))
        assert caught.value.errno == errno.ENOSPC
        assert path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    log.append(b"after")
    log.close()
    assert read(path.read_bytes()) == [b"before", b"after"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        log.append(b"a closed log writes into no other file")


def test_a_log_that_cannot_be_made_anew_stays_as_it_is(tmp_path):
    write(tmp_path, [b"one", b"two"])
    path = tmp_path / "observations"
    log, _ = ObservationLog.open(path, log_id=LOG_ID, since=0, lost_power=False, strict=True)
    log.make_ready()
    (tmp_path / "observations.new").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        log.begin_at(log.position)
    log.append(b"three")
    log.close()
    assert read(path.read_bytes()) == [b"one", b"two", b"three"]
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("strict", [True, False])
def test_a_strict_log_brings_every_record_to_disk_before_it_counts(folder, monkeypatch, strict):
    (folder / "journal.db").touch()
    log = ObservationLog.create(folder / "observations", log_id=LOG_ID, strict=strict)
    at_sync, sync = [], observation_log._sync

    def noted_sync(handle):
        at_sync.append((log.position, os.fstat(handle).st_size))
        sync(handle)

    monkeypatch.setattr(observation_log, "_sync", noted_sync)
    expected = []
    for body in (b"one", b"another"):
        before = log.position
        log.append(body)
        expected.append((before, (folder / "observations").stat().st_size))
    assert at_sync == (expected if strict else []), "written whole, and not counted yet"
    log.close()


def test_records_after_a_hole_that_a_power_cut_left_do_not_come_back(folder):
    content, ends = write(folder, [b"first", b"second", b"third"])
    torn = bytearray(content)
    torn[HEADER.size + ends[2] - 1] ^= 1  # in the second record
    torn[HEADER.size + ends[1]] ^= 1
    path = folder / "observations"
    path.write_bytes(torn)
    log, found = ObservationLog.open(path, log_id=LOG_ID, since=0, lost_power=True, strict=False)
    assert found == [b"first"]
    log.make_ready()
    assert path.stat().st_size == HEADER.size + ends[1]
    log.append(b"other2")  # as long as the second one was
    log.close()
    log, found = ObservationLog.open(path, log_id=LOG_ID, since=0, lost_power=False, strict=False)
    assert found == [b"first", b"other2"]
    log.close()
