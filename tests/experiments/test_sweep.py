"""Sweeps are interrupted, killed, resumed and failed on purpose."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fedbandit.errors import InvalidParameter
from fedbandit.experiments import spec as spec_module
from fedbandit.experiments.run_store import RunStore
from fedbandit.experiments.sweep import pending, run_one, sweep
from tests.experiments.specs import make_small_spec, named

ROOT = Path(__file__).resolve().parents[2]


def finished_files(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(root.rglob("*.parquet"))}


def test_every_spec_runs_with_every_seed_once(tmp_path):
    specs = [make_small_spec(), make_small_spec(alpha=2.0)]
    tasks = [(spec, seed) for spec in specs for seed in range(3)]
    seen = []
    tally = sweep(RunStore(tmp_path), [*tasks, *tasks], n_jobs=2, watch=lambda f: seen.append(f.task))
    assert (tally.n_run, tally.n_found, tally.failures) == (6, 0, ())
    assert sorted(map(str, seen)) == sorted(map(str, tasks))
    for spec, seed in tasks:
        assert RunStore(tmp_path).load(spec, seed).columns["rounds"][-1] == 60


def test_finished_runs_are_not_run_again(tmp_path):
    spec = make_small_spec(driver=named("fine"))
    sweep(RunStore(tmp_path), [(spec, 0), (spec, 1)], n_jobs=2)
    before = finished_files(tmp_path)
    tally = sweep(RunStore(tmp_path), [(spec, seed) for seed in range(4)], n_jobs=2)
    assert (tally.n_run, tally.n_found) == (2, 2)
    assert before.items() <= finished_files(tmp_path).items()


def test_a_failing_run_is_reported_and_the_others_go_on(tmp_path):
    store, spec = RunStore(tmp_path), make_small_spec(driver=named("failing"))
    tally = sweep(store, [(spec, seed) for seed in range(4)], n_jobs=2)
    assert tally.n_run == 2
    assert sorted((f.seed, f.error) for f in tally.failures) == [
        (1, "ArithmeticError: seed 1 is odd"),
        (3, "ArithmeticError: seed 3 is odd"),
    ]
    kept = store.failure(spec, 1)
    assert kept is not None
    assert "specs.py" in kept.traceback
    again = sweep(store, [(spec, seed) for seed in range(4)], n_jobs=2)
    assert (again.n_found, len(again.failures)) == (2, 2)  # tried again, not hidden


def test_a_run_that_kills_its_process_takes_no_other_with_it(tmp_path):
    store, spec = RunStore(tmp_path), make_small_spec(driver=named("deadly"))
    tally = sweep(store, [(spec, seed) for seed in range(6)], n_jobs=2)
    assert [(f.seed, f.error.split(":")[0]) for f in tally.failures] == [(1, "WorkerDied")]
    assert [seed for seed in range(6) if store.has(spec, seed)] == [0, 2, 3, 4, 5]


def test_the_longest_runs_start_first():
    short, long = make_small_spec(), make_small_spec(n_rounds=600)
    assert pending(RunStore("nowhere"), [(short, 0), (long, 0), (short, 1)]) == [(long, 0), (short, 0), (short, 1)]


def test_two_specs_with_one_id_are_refused(monkeypatch):
    monkeypatch.setattr(spec_module, "ID_DIGITS", 0)
    twins = make_small_spec(lam=1.0), make_small_spec(lam=2.0)
    with pytest.raises(InvalidParameter, match="share the id"):
        pending(RunStore("nowhere"), [(twin, 0) for twin in twins])


def test_a_run_uses_one_blas_thread_and_says_how_long_it_took():
    finished = run_one((make_small_spec(), 0))
    assert finished.failure is None
    assert 0 < finished.seconds < 60


PROGRAM = """
import sys
from fedbandit.experiments.run_store import RunStore
from fedbandit.experiments.sweep import sweep
from tests.experiments.specs import make_small_spec, named
if __name__ == "__main__":
    spec = make_small_spec(driver=named("slow", seconds=0.15))
    sweep(RunStore(sys.argv[1]), [(spec, seed) for seed in range(20)], n_jobs=2)
"""


def hear_interrupts() -> None:
    """In the child: a shell that was put into the background ignores SIGINT, and its children would, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_sweep(root: Path) -> subprocess.Popen:
    # A session of its own, so that its workers can be found and ended with it.
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root)],
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=hear_interrupts,
        stderr=subprocess.DEVNULL,
    )


def wait_for_runs(root: Path, n: int, *, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while len(list(root.rglob("*.parquet"))) < n:
        assert time.monotonic() < deadline, "the sweep does not get going"
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_resumes_after_it_was_killed(tmp_path, how):
    sweeping = start_sweep(tmp_path)
    try:
        wait_for_runs(tmp_path, 3)
        if how is signal.SIGKILL:
            os.killpg(sweeping.pid, how)
        else:
            os.kill(sweeping.pid, how)
        assert sweeping.wait(timeout=30) != 0
    finally:
        if sweeping.poll() is None:
            os.killpg(sweeping.pid, signal.SIGKILL)
    survived = finished_files(tmp_path)
    assert 3 <= len(survived) < 20
    spec = make_small_spec(driver=named("slow", seconds=0.15))
    tally = sweep(RunStore(tmp_path), [(spec, seed) for seed in range(20)], n_jobs=2)
    assert tally.n_found == len(survived)
    assert tally.n_run == 20 - len(survived)
    assert survived.items() <= finished_files(tmp_path).items()  # not written again
    assert [RunStore(tmp_path).load(spec, seed).facts["seed"] for seed in range(20)] == list(range(20))


RAY_PROGRAM = """
import sys
from fedbandit.experiments.run_store import RunStore
from fedbandit.experiments.sweep import Cluster, sweep
from tests.experiments.specs import make_small_spec, named
if __name__ == "__main__":
    good, bad = make_small_spec(), make_small_spec(driver=named("failing"))
    tasks = [(spec, seed) for spec in (good, bad) for seed in range(4)]
    tally = sweep(RunStore(sys.argv[1]), tasks, n_jobs=2, cluster=Cluster(n_cpus=2, temp_dir=sys.argv[2]))
    print(tally.n_run, len(tally.failures))
"""


@pytest.mark.slow
def test_a_sweep_runs_on_a_real_ray_and_leaves_the_home_directory_alone(tmp_path):
    pytest.importorskip("ray")
    home = tmp_path / "home"
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    # Ray keeps its sockets there, and the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as short:
        run = subprocess.run(
            [sys.executable, "-c", RAY_PROGRAM, str(tmp_path / "out"), short],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert run.stdout.split()[-2:] == ["6", "2"], run.stderr
    assert not (home / ".ray").exists()
    spec = make_small_spec()
    sweep(RunStore(tmp_path / "local"), [(spec, 0)], n_jobs=1)
    here, there = (RunStore(tmp_path / name).load(spec, 0) for name in ("local", "out"))
    assert here.columns["regret"].tolist() == there.columns["regret"].tolist()


def test_ctrl_c_ends_the_command_with_130_and_what_is_finished_can_be_drawn(tmp_path):
    command = [sys.executable, "-m", "fedbandit", "study", "bias"]
    studying = subprocess.Popen(
        [*command, "--out", str(tmp_path), "--jobs", "2"],
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=hear_interrupts,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_runs(tmp_path, 4)
        os.kill(studying.pid, signal.SIGINT)
        _, said = studying.communicate(timeout=30)
    finally:
        if studying.poll() is None:
            os.killpg(studying.pid, signal.SIGKILL)
    assert studying.returncode == 130, said
    assert "the same command resumes here" in said
    drawn = subprocess.run([*command, "--from", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert drawn.returncode == 0, drawn.stderr
    assert "arm A" in drawn.stdout
