import json
import math
import subprocess
import sys

import pytest

import fedbandit as fb
from fedbandit.errors import FormatError, InvalidParameter
from fedbandit.experiments.spec import RunSpec, make_spec
from tests.experiments.specs import make_small_spec

WORLD = fb.worlds.uniform(dim=15)


def authors_spec(**rule) -> RunSpec:
    made = fb.FedLinUCB(**{"dim": 15, "alpha": 1.0, "beta": 0.5, **rule})
    return make_spec(made, WORLD, n_agents=15, n_rounds=30_000)


def test_an_id_is_readable_and_never_changes():
    # Runs on disk are found by this id: a change here makes all finished runs invisible.
    assert authors_spec().id == "fedlinucb-uniform-d15-m15-a1-ce7380"


def test_an_id_is_the_same_in_another_process():
    program = (
        "import fedbandit as fb; from fedbandit.experiments.spec import make_spec;"
        "rule = fb.FedLinUCB(dim=15, alpha=1.0, beta=0.5);"
        "print(make_spec(rule, fb.worlds.uniform(dim=15), n_agents=15, n_rounds=30_000).id)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == authors_spec().id


@pytest.mark.parametrize(
    "other",
    [
        authors_spec(alpha=2.0),
        authors_spec(beta=0.6),
        authors_spec(lam=0.5),
        authors_spec(join=True),
        make_spec(authors_spec().make_rule(), WORLD, n_agents=15, n_rounds=30_001),
        make_spec(authors_spec().make_rule(), WORLD, n_agents=16, n_rounds=30_000),
        make_spec(authors_spec().make_rule(), fb.worlds.uniform(dim=15, noise=0.2), n_agents=15, n_rounds=30_000),
        make_spec(
            authors_spec().make_rule(), WORLD, n_agents=15, n_rounds=30_000, participation=fb.participation.zipf()
        ),
        make_spec(authors_spec().make_rule(), WORLD, n_agents=15, n_rounds=30_000, record=[10]),
        make_spec(
            authors_spec().make_rule(), WORLD, n_agents=15, n_rounds=30_000, driver={"name": "unreliable-network"}
        ),
    ],
)
def test_whatever_changes_a_run_changes_its_id(other):
    assert other.id != authors_spec().id
    assert other != authors_spec()


def test_one_and_one_point_zero_are_the_same_spec():
    assert authors_spec(alpha=1) == authors_spec(alpha=1.0)
    data = authors_spec().to_dict()
    data["world"] = {**data["world"], "noise": 0.30}
    assert RunSpec.from_dict(data).id == authors_spec().id


@pytest.mark.parametrize(
    "rule",
    [
        fb.FedLinUCB(dim=15, alpha=math.inf, beta=0.5),
        fb.FedLinUCB(dim=15, alpha=0.1, beta=fb.radius.adaptive(n_agents=3, noise_scale=0.3), trigger="spectral"),
        fb.AsyncLinUCB(dim=15, beta=0.5, gamma_up=2.0, gamma_down=math.inf),
        fb.DisLinUCB(dim=15, beta=0.5, threshold=3.0),
        fb.OFUL(dim=15, beta=0.5, mode="shared"),
        fb.OFUL(dim=15, beta=0.5, switching=1.0),
    ],
)
@pytest.mark.parametrize(
    "participation",
    [None, fb.participation.zipf(1.5), fb.participation.sequence([0, 1, 2]), fb.participation.episodes([[0, 1], [2]])],
)
def test_a_spec_survives_json(rule, participation):
    spec = make_spec(rule, WORLD, n_agents=3, n_rounds=3, participation=participation, record=[1, 2])
    again = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.id == spec.id
    assert again.make_rule().to_dict() == rule.to_dict()
    assert again.make_world() == WORLD
    if participation is not None:
        assert again.make_participation() == participation


def test_a_spec_plays_what_the_objects_play():
    from fedbandit.experiments.drivers.base import play

    spec = make_small_spec(n_rounds=200)
    trace = fb.simulate(spec.make_rule(), spec.make_world(), n_agents=4, n_rounds=200, seed=7)
    assert play(spec, 7).columns["regret"][-1] == trace.regret[-1]


def test_a_world_of_arrays_cannot_be_named():
    world = fb.worlds.from_arrays([[[1.0, 0.0]]], [[1.0]])
    with pytest.raises(InvalidParameter, match="spec can name"):
        make_spec(fb.FedLinUCB(dim=2, beta=0.5), world, n_agents=1, n_rounds=1)


def test_nonsense_is_a_named_error():
    with pytest.raises(FormatError):
        RunSpec.from_dict({"rule": {}})
    broken = {**make_small_spec().to_dict(), "world": {"name": "moon"}}
    with pytest.raises(InvalidParameter, match="moon"):
        RunSpec.from_dict(broken).make_world()
