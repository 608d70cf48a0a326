"""What an agent writes to its state directory is for its owner only."""

import os
import stat

import numpy as np
import pytest

from tests.sdk.helpers import make_hub, make_live

X = np.eye(3)


def modes(directory):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def use(state):
    agent = make_live(make_hub(), state_dir=state, sync="inline")
    for _ in range(3):
        agent.observe(agent.choose(X), 1.0)
    return agent


def test_a_new_directory_is_private_whatever_the_umask(tmp_path, open_umask):
    state = tmp_path / "agent"
    with use(state):
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        found = modes(state)
        assert {"lock", "journal.db", "journal.db-wal", "observations", "decisions"} <= set(found)
        assert set(found.values()) == {0o600}


def test_a_directory_of_an_older_version_is_made_private(tmp_path):
    state = tmp_path / "agent"
    use(state).close()
    state.chmod(0o755)
    for path in state.iterdir():
        path.chmod(0o644)
    with use(state):
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert set(modes(state).values()) == {0o600}


def test_a_directory_with_other_files_keeps_its_mode(tmp_path):
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "notes").chmod(0o644)
    tmp_path.chmod(0o755)
    with use(tmp_path):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
        found = modes(tmp_path)
        assert found.pop("notes") == 0o644
        assert set(found.values()) == {0o600}
