import numpy as np
import pytest

from fedbandit.errors import FormatError
from fedbandit.experiments.drivers.base import RunOutcome
from fedbandit.experiments.run_store import FailedRun, RunStore
from tests.experiments.specs import make_small_spec

OUTCOME = RunOutcome({"rounds": np.array([1, 60]), "regret": np.array([0.1, 0.7])}, {"fact": 0.5})


def test_a_run_comes_back_with_all_that_belongs_to_it(tmp_path):
    store, spec = RunStore(tmp_path), make_small_spec()
    assert not store.has(spec, 3)
    store.save(spec, 3, OUTCOME, seconds=1.5)
    run = store.load(spec, 3)
    assert (run.seed, run.seconds, run.facts, run.spec) == (3, 1.5, {"fact": 0.5}, spec)
    assert run.columns["rounds"].tolist() == [1, 60]
    assert run.columns["rounds"].dtype == np.int64
    assert set(run.versions) >= {"python", "fedbandit", "numpy"}
    assert [path.name for path in store.path(spec, 3).parent.iterdir()] == ["seed-3.parquet"]


def test_a_damaged_file_is_named(tmp_path):
    store, spec = RunStore(tmp_path), make_small_spec()
    store.save(spec, 0, OUTCOME, seconds=0.0)
    path = store.path(spec, 0)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(FormatError, match=path.name):
        store.load(spec, 0)


def test_a_run_of_another_spec_is_not_taken_for_this_one(tmp_path):
    store, spec, other = RunStore(tmp_path), make_small_spec(), make_small_spec(alpha=2.0)
    store.save(other, 0, OUTCOME, seconds=0.0)
    store.path(spec, 0).parent.mkdir(parents=True)
    store.path(other, 0).rename(store.path(spec, 0))
    with pytest.raises(FormatError, match="another spec"):
        store.load(spec, 0)


def test_a_failure_is_kept_until_the_run_succeeds(tmp_path):
    store, spec = RunStore(tmp_path), make_small_spec()
    store.fail(FailedRun(spec.id, 2, "Oops: no", "trace"))
    assert store.failure(spec, 2) == FailedRun(spec.id, 2, "Oops: no", "trace")
    store.save(spec, 2, OUTCOME, seconds=0.0)
    assert store.failure(spec, 2) is None
