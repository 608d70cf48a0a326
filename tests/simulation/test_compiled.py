"""The compiled engine: the parts of its kernels against the core, its options, and what it refuses."""

import math
import subprocess
import sys

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.core.decision_sets import first_best
from fedbandit.core.ridge import RidgeModel, factorise
from fedbandit.core.statistics import SufficientStats
from fedbandit.simulation.runner import SimulatedFleet, play_rounds, rounds_of
from fedbandit.simulation.worlds import Block, DrawnStream, generator
from tests.builders import RULE_NAMES, make_rule, make_world
from tests.simulation.engines import assert_same_trace, both_engines

numba = pytest.importorskip("numba")

from fedbandit.simulation.compiled import choose, linear  # noqa: E402 (after the check that numba is there)
from fedbandit.simulation.compiled.engine import has_kernel  # noqa: E402
from fedbandit.simulation.compiled.fleets import unpack  # noqa: E402
from fedbandit.simulation.compiled.radius import beta_of, terms_of  # noqa: E402

WITH_KERNEL = tuple(name for name in RULE_NAMES if has_kernel(make_rule(name)))
RADII = {
    "fixed": 0.7,
    "paper": fb.radius.paper(n_agents=9, n_rounds=500, noise_scale=0.3),
    "adaptive": fb.radius.adaptive(n_agents=9, noise_scale=0.3, n_rounds=500),
    "adaptive, T unknown": fb.radius.adaptive(n_agents=9, noise_scale=0.3),
    "adaptive, one agent": fb.radius.adaptive(n_agents=1, noise_scale=0.3),
    "exogenous": fb.radius.exogenous(noise_scale=0.3, theta_bound=2.0),
    "no noise": fb.radius.exogenous(noise_scale=0.0),
    "counted": fb.radius.counted(noise_scale=0.1),
}
LOWER = {dim: np.tril_indices(dim) for dim in range(1, 40)}


def random_Sigma(dim, *, lam=1.0, n=30, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, dim))
    return lam * np.eye(dim) + X.T @ X


@pytest.mark.parametrize("name", RADII)
@pytest.mark.parametrize("trigger", ["determinant", "spectral"])
def test_the_radius_of_the_kernels_is_that_of_the_theory(name, trigger):
    rule = fb.FedLinUCB(dim=3, beta=RADII[name], lam=0.5, alpha=0.3, trigger=trigger)
    for n_obs, n_uploads in [(0, 0), (1, 1), (40, 7), (10_000, 400)]:
        model = RidgeModel(SufficientStats(random_Sigma(3, lam=0.5, n=n_obs), np.zeros(3), n_obs))
        expected = rule.beta_for(model, n_obs=n_obs, version=n_uploads)
        assert beta_of(terms_of(rule), model.log_det, n_obs, n_uploads) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("dim", [1, 2, 5, 17, 39])
def test_the_kernels_factorise_as_the_core_does(dim):
    Sigma = random_Sigma(dim) * np.multiply.outer(s := 10.0 ** np.linspace(-4, 4, dim), s)
    W = np.empty((dim, dim))
    log_det = linear.factorise(Sigma[LOWER[dim]], W)
    expected = factorise(Sigma)
    assert log_det == pytest.approx(expected.log_det, rel=1e-13)
    x = np.random.default_rng(1).standard_normal(dim) * s
    assert np.linalg.norm(W @ x) == pytest.approx(np.linalg.norm(expected.W @ x), rel=1e-10)
    assert np.array_equal(W, np.tril(W))


def test_a_ridge_that_rounding_has_eaten_is_lifted_as_in_the_core():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    Sigma = np.outer(x, x) + 1e-18 * np.eye(4)
    W = np.empty((4, 4))
    log_det = linear.factorise(Sigma[LOWER[4]], W)
    expected = factorise(Sigma)
    assert log_det == pytest.approx(expected.log_det, rel=1e-3)
    assert np.linalg.norm(W @ x) == pytest.approx(np.linalg.norm(expected.W @ x), rel=0.5)
    np.testing.assert_allclose(np.triu(W, 1), 0.0)
    assert np.isfinite(W).all()


@pytest.mark.parametrize("dim", [1, 3, 12, 39])
@pytest.mark.parametrize("size", [1e-7, 1e-2, 1.0, 1e3])
def test_growth_is_exact_also_where_it_is_tiny(dim, size):
    Sigma, x = random_Sigma(dim), np.sqrt(size) * np.random.default_rng(2).standard_normal(dim)
    W = np.empty((dim, dim))
    linear.factorise(Sigma[LOWER[dim]], W)
    growth = linear.log_det_growth(W, np.outer(x, x)[LOWER[dim]])
    assert growth == pytest.approx(math.log1p(x @ np.linalg.solve(Sigma, x)), rel=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 9, 30])
def test_the_spread_bounds_the_largest_eigenvalue_and_is_seldom_far_from_it(dim):
    for seed in range(20):
        P = np.linalg.inv(random_Sigma(dim, n=2 * dim, seed=seed))
        exact = math.sqrt(np.linalg.eigvalsh(P)[-1])
        assert exact < linear.spread(P) < 1.5 * exact


def test_headroom_is_what_the_largest_eigenvalue_leaves():
    for seed in range(30):
        A = random_Sigma(4, lam=0.0, n=3, seed=seed)
        top = np.linalg.eigvalsh(A)[-1]
        assert linear.headroom(np.tril(A), 0.99 * top) < 0
        assert 0 <= linear.headroom(np.tril(A), 2.0 * top) <= top
        assert linear.headroom(np.tril(A), 2.0 * top) >= 0.2 * top


def test_packed_triangles_come_back_whole():
    Sigma = random_Sigma(5)
    assert np.array_equal(unpack(Sigma[LOWER[5]], 5), Sigma)
    assert np.array_equal(np.tril(linear.lower_of(Sigma[LOWER[5]])), np.tril(Sigma))


def test_a_choice_evaluates_few_actions_and_finds_the_same_as_scoring_all():
    rng = np.random.default_rng(3)
    dim, K = 6, 12
    rows, norms, room = np.empty((0, 0), dtype=np.int64), np.empty(0), [np.empty(K) for _ in range(3)]

    @numba.njit
    def pick(table, theta_hat, W, beta, top, upper, scores, squares):
        return choose.choose(table, rows, norms, 0, K, theta_hat, W, 0, True, beta, top, upper, scores, squares)

    for _ in range(200):
        X = rng.standard_normal((K, dim)) * rng.choice([0.1, 1.0], size=(K, 1))
        X[rng.integers(K)] = X[rng.integers(K)]  # a tie now and then
        W = np.empty((dim, dim))
        linear.factorise(random_Sigma(dim, n=int(rng.integers(1, 50)))[LOWER[dim]], W)
        theta_hat, beta = rng.standard_normal(dim), rng.choice([0.0, 0.3, 3.0])
        top = linear.spread(W.T @ W)
        index = pick(X, theta_hat[None], W[None], beta, top, *room)
        assert index == first_best(X @ theta_hat + beta * np.linalg.norm(X @ W.T, axis=1))


@pytest.mark.parametrize("name", WITH_KERNEL)
def test_every_rule_with_a_kernel_has_the_trace_of_the_reference(name):
    assert_same_trace(*both_engines(make_rule(name), make_world(), n_agents=5, n_rounds=700))


@pytest.mark.parametrize("record", ["log", "all", [1, 17, 400]])
def test_all_ways_to_record_agree(record):
    assert_same_trace(*both_engines(make_rule(), make_world(), n_agents=3, n_rounds=400, record=record))


def test_progress_adds_up_to_the_rounds_played():
    calls = []
    fb.simulate(make_rule(), make_world(), n_agents=2, n_rounds=10_000, engine="compiled", progress=calls.append)
    assert len(calls) > 1
    assert sum(calls) == 10_000


def test_a_run_is_the_beginning_of_a_longer_one():
    world = fb.worlds.articles(dim=3, n_actions=4, n_articles=20)
    short, long = (fb.simulate(make_rule(), world, n_agents=4, n_rounds=n, record="all") for n in (100, 3000))
    assert np.array_equal(short.choices, long.choices[:100])


@pytest.mark.parametrize("alpha", [0.0, math.inf])
@pytest.mark.parametrize("trigger", ["determinant", "spectral"])
def test_the_ends_of_the_trigger_agree(alpha, trigger):
    rule = make_rule(alpha=alpha, trigger=trigger)
    assert_same_trace(*both_engines(rule, make_world(), n_agents=4, n_rounds=300))


@pytest.mark.parametrize("alpha", [1.0, 0.01, 3.0])
def test_determinant_ratios_of_exactly_one_plus_alpha_do_not_trigger_in_either_engine(alpha):
    world = fb.worlds.from_arrays(np.eye(2)[None].repeat(4, axis=0), np.zeros((4, 2)))
    rule = fb.FedLinUCB(dim=2, alpha=alpha, beta=1.0, lam=1.0)
    reference, compiled = both_engines(rule, world, n_agents=2, n_rounds=3000)
    assert_same_trace(reference, compiled)
    assert reference.n_messages > 0


def test_an_agent_may_wait_long_between_exchanges():
    """More than 256 observations and 8 nats of growth, after which the reference starts its inverse afresh."""
    for name in ("fedlinucb", "oful-independent", "oful-independent-rare-switching"):
        numbers = {"oful-independent": {}, "oful-independent-rare-switching": {"switching": 1e6}}.get(
            name, {"alpha": 1e6}
        )
        assert_same_trace(*both_engines(make_rule(name, **numbers), make_world(), n_agents=1, n_rounds=3000))


def test_features_of_different_scales_agree():
    scales = 10.0 ** np.array([-3.0, 0.0, 3.0])
    features = np.random.default_rng(0).standard_normal((60, 5, 3)) * scales
    world = fb.worlds.from_arrays(features, np.random.default_rng(1).random((60, 5)), noise=0.1)
    for name in WITH_KERNEL:
        assert_same_trace(*both_engines(make_rule(name, lam=0.1), world, n_agents=3, n_rounds=500))


def test_large_problems_agree():
    world = fb.worlds.articles(dim=60, n_actions=50, n_articles=300)
    for rule in (
        fb.FedLinUCB(dim=60, beta=0.3, lam=0.1),
        fb.AsyncLinUCB(dim=60, beta=0.3, lam=0.1, gamma_up=2.0, gamma_down=2.0),
    ):
        assert_same_trace(*both_engines(rule, world, n_agents=3, n_rounds=200))


@pytest.mark.parametrize("worth", [1, 10**6])
def test_tables_agree_with_and_without_remembering_their_rows(worth, monkeypatch):
    from fedbandit.simulation.compiled import fleets

    monkeypatch.setattr(fleets, "WORTH_REMEMBERING", worth)
    for name in ("fedlinucb", "fedlinucb-all-options", "oful-independent-rare-switching"):
        for world in (fb.worlds.articles(dim=3, n_actions=4, n_articles=20), fb.worlds.adversarial(dim=3, phase=7)):
            assert_same_trace(*both_engines(make_rule(name), world, n_agents=4, n_rounds=600))


class OwnRule(fb.FedLinUCB):
    """A rule that somebody has changed."""


class HalfBall:
    """A decision set of somebody's own."""

    def best(self, theta_hat, width, beta):
        return np.abs(fb.Ball(2).best(theta_hat, width, beta))


class OwnWorld:
    """A world of such sets."""

    name = "own"
    dim = 2
    block_rounds = 50

    def stream(self, seed):
        def make(rng, active):
            return Block(np.empty(0), decision_set=HalfBall())

        return DrawnStream(np.array([0.6, 0.8]), generator(seed), generator(seed), 0.1, make)


class BrokenWorld:
    """A world that shows NaN in its twentieth round."""

    name = "broken"
    dim = 3
    block_rounds = 50

    def stream(self, seed):
        def make(rng, active):
            array = rng.random((len(active), 4, 3))
            array[19, 2, 1] = np.nan
            return Block(np.empty(0), np.zeros((len(active), 4)), array)

        return DrawnStream(None, generator(seed), generator(seed), 0.1, make)


class AlternatingTables:
    """A world whose table changes from block to block: nothing may be remembered of the wrong one."""

    name = "alternating"
    dim = 3
    block_rounds = 64

    def stream(self, seed):
        tables = [np.random.default_rng(k).standard_normal((30, 3)) for k in range(2)]
        theta_star, turn = np.ones(3), iter(range(10**6))

        def make(rng, active):
            table, rows = tables[next(turn) % 2], rng.integers(30, size=(len(active), 5))
            return Block(np.empty(0), (table @ theta_star)[rows], table=table, rows=rows)

        return DrawnStream(theta_star, generator(seed), generator(seed), 0.1, make)


def test_a_changing_table_agrees(monkeypatch):
    from fedbandit.simulation.compiled import fleets

    monkeypatch.setattr(fleets, "WORTH_REMEMBERING", 1)
    assert_same_trace(*both_engines(make_rule(), AlternatingTables(), n_agents=3, n_rounds=1000))


def test_what_has_no_kernel_is_left_to_the_reference_or_refused():
    rule, world = OwnRule(dim=3, beta=0.5), make_world()
    run = {"n_agents": 2, "n_rounds": 60, "seed": 0}
    rounds = rounds_of(world, fb.participation.uniform(), **run)
    expected = play_rounds(SimulatedFleet(rule, 2), *rounds, n_rounds=60, record="all")
    assert_same_trace(expected, fb.simulate(rule, world, record="all", **run))
    with pytest.raises(fb.errors.InvalidParameter, match="OwnRule"):
        fb.simulate(rule, world, engine="compiled", **run)
    sets = make_rule(dim=2)
    assert fb.simulate(sets, OwnWorld(), **run).rounds[-1] == 60
    with pytest.raises(fb.errors.InvalidParameter, match="HalfBall"):
        fb.simulate(sets, OwnWorld(), engine="compiled", **run)


def test_bad_numbers_are_named():
    with pytest.raises(fb.errors.InvalidParameter, match="engine"):
        fb.simulate(make_rule(), make_world(), n_agents=1, n_rounds=1, engine="fast")
    endless = make_rule(alpha=math.inf, beta=fb.radius.paper(n_agents=2, n_rounds=9, noise_scale=1.0))
    for rule, world in (
        (endless, make_world()),
        (make_rule(), BrokenWorld()),
        (make_rule("oful-shared"), BrokenWorld()),
    ):
        for engine in ("reference", "compiled"):
            with pytest.raises(fb.errors.InvalidInput):
                fb.simulate(rule, world, n_agents=1, n_rounds=50, engine=engine)


def test_without_numba_auto_uses_the_reference_and_compiled_names_the_extra():
    program = """
import sys
sys.modules["numba"] = None  # as if it were not installed
import fedbandit as fb
rule, world = fb.FedLinUCB(dim=2, beta=0.5), fb.worlds.uniform(dim=2, n_actions=3)
print(fb.simulate(rule, world, n_agents=2, n_rounds=30).rounds[-1])
try:
    fb.simulate(rule, world, n_agents=2, n_rounds=30, engine="compiled")
except fb.errors.MissingExtra as error:
    print(error)
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[0] == "30"
    assert "fedbandit[lab]" in finished.stdout
