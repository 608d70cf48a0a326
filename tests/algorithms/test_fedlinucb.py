"""FedLinUCB line by line, and the options that go past the paper."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import errors
from fedbandit.core.growth import GrowthTracker
from fedbandit.simulation.runner import SimulatedFleet
from tests.builders import make_agent, make_rule, play, rows


def observe_until_upload(agent, seed=0):
    rng = np.random.default_rng(seed)
    while True:
        upload = agent.observe(rng.standard_normal(agent.dim), float(rng.standard_normal()))
        if upload is not None:
            return upload


def test_the_first_upload_comes_when_the_determinant_has_grown_by_more_than_one_plus_alpha():
    agent = make_agent(dim=2, alpha=3.0)
    assert agent.observe([1.0, 0.0], 1.0) is None  # det = 2
    assert agent.observe([0.0, 1.0], 1.0) is None  # det = 4 = 1 + α: not strictly more
    assert not agent.should_upload
    upload = agent.observe([1e-3, 0.0], 1.0)
    assert upload is not None
    assert upload.growth == pytest.approx(np.log(4.0), abs=1e-5)
    np.testing.assert_allclose(upload.stats.Sigma, np.eye(2), atol=1e-5)


def test_an_exchange_clears_the_buffer_and_takes_the_server_s_model():
    rule = make_rule(dim=2, alpha=0.5)
    server, agent = rule.server(), rule.agent("a")
    other = rule.agent("b")
    server.receive(observe_until_upload(other))
    upload = observe_until_upload(agent, seed=1)
    assert agent.model_version == 0
    agent.adopt(server.receive(upload))
    assert agent.local.n_obs == 0 and agent.in_flight is None and agent.growth == 0.0
    assert agent.model.stats == server.stats
    assert agent.model_version == server.version == 2 and agent.n_switches == 1


def test_the_policy_is_lazy_and_never_looks_at_the_buffer():
    agent = make_agent(alpha=1e6)
    before = agent.scores(np.eye(3))
    for x in rows(50):
        assert agent.observe(x, 10.0) is None
    after = agent.scores(np.eye(3))
    np.testing.assert_array_equal(after.upper, before.upper)
    assert agent.local.n_obs == 50 and agent.growth > 1.0


def test_the_ridge_counts_once_and_never_travels_in_an_upload():
    rule = make_rule(dim=2, lam=5.0, alpha=0.0)
    server = rule.server()
    for name in ("a", "b", "c"):
        upload = rule.agent(name).observe([1.0, 0.0], 1.0)
        assert upload.stats.Sigma.tolist() == [[1.0, 0.0], [0.0, 0.0]]
        server.receive(upload)
    assert server.stats.Sigma.tolist() == [[8.0, 0.0], [0.0, 5.0]]


def test_alpha_zero_uploads_every_informative_row_and_alpha_infinity_none():
    always, never = make_agent(alpha=0.0), make_agent(alpha=np.inf)
    assert always.observe(np.zeros(3), 1.0) is None  # the zero row tells nothing
    assert always.observe([1e-8, 0.0, 0.0], 1.0) is not None
    for x in rows(100):
        assert never.observe(1e6 * x, 1.0) is None


@pytest.mark.parametrize(
    "numbers",
    [{"alpha": -0.1}, {"alpha": np.nan}, {"alpha": "much"}, {"refresh": "later"}, {"trigger": "hair"}],
    ids=str,
)
def test_options_that_do_not_exist_are_named_errors(numbers):
    with pytest.raises(errors.InvalidParameter, match=next(iter(numbers))):
        make_rule(**numbers)


def test_numbers_are_given_by_keyword():
    with pytest.raises(TypeError):
        fb.FedLinUCB(3, 0.5)


def test_the_paper_is_the_default():
    rule = fb.FedLinUCB(dim=2, beta=0.5)
    assert (rule.join, rule.refresh, rule.trigger) == (False, "upload", "determinant")
    assert rule.agent("a").arrive() is None


def test_a_radius_that_has_no_value_at_this_alpha_is_a_named_error():
    for alpha, beta in (
        (np.inf, fb.radius.adaptive(n_agents=3, noise_scale=0.3)),
        (np.inf, fb.radius.paper(n_agents=3, n_rounds=10, noise_scale=0.3)),
        (0.0, fb.radius.paper(n_agents=3, n_rounds=10, noise_scale=0.3)),
    ):
        with pytest.raises(errors.InvalidParameter, match="radius"):
            make_agent(alpha=alpha, beta=beta).choose(np.eye(3))


def test_the_radius_is_evaluated_when_a_model_is_adopted():
    rule = make_rule(alpha=0.5, beta=fb.radius.adaptive(n_agents=2, noise_scale=0.3))
    server, agent = rule.server(), rule.agent("a")
    assert agent.beta == rule.radius(fb.radius.Evidence(3, 1.0, 0.5, 0.0, 0, 0))
    agent.adopt(server.receive(observe_until_upload(agent)))
    rho = float(np.linalg.slogdet(server.stats.Sigma)[1])
    assert agent.beta == pytest.approx(rule.radius(fb.radius.Evidence(3, 1.0, 0.5, rho, server.stats.n_obs, 1)))


def test_upload_now_sends_the_buffer_without_waiting_for_the_trigger():
    agent = make_agent(alpha=np.inf)
    assert agent.upload_now() is None
    agent.observe(np.ones(3), 1.0)
    upload = agent.upload_now()
    assert upload.stats.n_obs == 1 and agent.upload_now() is upload


# -- join


def test_an_agent_that_joins_asks_once_before_its_first_decision():
    rule = make_rule(join=True, alpha=0.5)
    server = rule.server()
    server.receive(observe_until_upload(rule.agent("a")))
    newcomer = rule.agent("b")
    pull = newcomer.arrive()
    assert pull == fb.Pull("b", newcomer.incarnation)
    assert newcomer.arrive() == pull, "a lost answer is asked for again"
    newcomer.adopt(server.receive(pull))
    assert newcomer.arrive() is None
    assert newcomer.model.stats == server.stats


# -- arrival


def test_with_arrival_the_upload_goes_at_once_and_the_download_waits_for_the_next_round():
    rule = make_rule(refresh="arrival", alpha=0.5)
    server, agent = rule.server(), rule.agent("a")
    reply = server.receive(observe_until_upload(agent))
    assert reply == fb.Receipt("a", 1)
    agent.adopt(reply)
    assert agent.in_flight is None and agent.model_version == 0
    server.receive(observe_until_upload(rule.agent("b")))
    agent.adopt(server.receive(agent.arrive()))
    assert agent.model_version == 2, "the newest model, with what others uploaded meanwhile"
    assert agent.arrive() is None


def test_with_arrival_merged_data_no_longer_counts_towards_the_trigger():
    # The trigger compares Σ_m + Σ_loc with Σ_m, and the buffer is empty after the receipt: late rewards that are
    # booked before the agent's next round must not each cause an upload.
    rule = make_rule(refresh="arrival", alpha=1.0)
    server, agent = rule.server(), rule.agent("a")
    agent.adopt(server.receive(observe_until_upload(agent)))
    assert agent.growth == 0.0
    assert agent.observe([0.1, 0.0, 0.0], 1.0) is None
    assert agent.growth == pytest.approx(np.log1p(0.01))


def test_with_arrival_data_seen_before_the_receipt_counts_against_the_old_model():
    rule = make_rule(dim=2, refresh="arrival", alpha=1.0)
    server, agent = rule.server(), rule.agent("a")
    upload = agent.observe([2.0, 0.0], 1.0)
    agent.observe([0.0, 2.0], 1.0)
    second = agent.adopt(server.receive(upload))
    assert second is not None and second.stats.Sigma.tolist() == [[0.0, 0.0], [0.0, 4.0]]
    assert second.growth == pytest.approx(np.log(5.0))


# -- spectral


def test_the_spectral_trigger_fires_when_the_largest_eigenvalue_exceeds_alpha():
    agent = make_agent("fedlinucb-spectral", dim=2, alpha=1.0)
    assert agent.observe([1.0, 0.0], 1.0) is None  # λ_max = 1 = α: not strictly more
    assert agent.observe([0.0, 1.0], 1.0) is None  # det = 4 > 2, but λ_max = 1
    assert agent.growth == pytest.approx(np.log(4.0))
    assert agent.observe([0.1, 0.0], 1.0) is not None  # λ_max = 1.01


@pytest.mark.parametrize("seed", range(5))
def test_the_spectral_trigger_is_exact_at_every_observation(seed):
    rng = np.random.default_rng(seed)
    rule = make_rule("fedlinucb-spectral", alpha=0.7)
    server, agent = rule.server(), rule.agent("a")
    n_uploads = 0
    for _ in range(300):
        Sigma, before = agent.model.stats.Sigma, agent.local.Sigma
        x = rng.standard_normal(3) * rng.uniform(0.05, 1.0)
        upload = agent.observe(x, 1.0)
        top = float(np.linalg.eigvals(np.linalg.solve(Sigma, before + np.outer(x, x))).real.max())
        assert (upload is not None) == (top > 0.7)
        if upload is not None:
            n_uploads += 1
            agent.adopt(server.receive(upload))
    assert n_uploads > 5


def test_the_spectral_trigger_counts_what_came_while_an_upload_travelled():
    rule = make_rule("fedlinucb-spectral", dim=2, alpha=1.0)
    server, agent = rule.server(), rule.agent("a")
    first = agent.observe([2.0, 0.0], 1.0)
    assert agent.observe([0.0, 3.0], 1.0) is None  # one exchange at a time
    second = agent.adopt(server.receive(first))
    assert second is not None, "λ_max(Σ_m⁻¹Σ_loc) = 9 on the model that has just come"
    assert second.stats.Sigma.tolist() == [[0.0, 0.0], [0.0, 9.0]]


def test_the_spectral_trigger_stays_exact_after_an_answer_that_came_late():
    rule = make_rule("fedlinucb-spectral", dim=2, alpha=1.0)
    server, agent = rule.server(), rule.agent("a")
    first = agent.observe([2.0, 0.0], 1.0)
    agent.observe([0.0, 0.8], 1.0)
    assert agent.adopt(server.receive(first)) is None  # 0.64 ≤ α
    assert agent.observe([0.0, 0.5], 1.0) is None  # 0.89
    assert agent.observe([2.0, 0.0], 1.0) is None  # det = 1.89 · 1.8 > 2, but λ_max = 0.89: 4/5 in the other direction
    assert agent.observe([0.0, 0.4], 1.0) is not None  # 1.05


def test_an_upload_that_is_not_answered_yet_still_counts_as_growth():
    rule = make_rule(dim=2, alpha=1.0)
    server, agent, other = rule.server(), rule.agent("a"), rule.agent("b")
    assert agent.observe([2.0, 0.0], 1.0) is not None  # in flight: the server does not have it yet
    agent.observe([0.0, 1.0], 1.0)
    server.receive(other.observe([0.0, 2.0], 1.0))
    agent.adopt(server.receive(fb.Pull("a", agent.incarnation)))
    assert agent.in_flight is not None
    assert agent.growth == pytest.approx(np.log(5.0 * 6.0) - np.log(1.0 * 5.0))


def test_an_infinite_row_is_refused_also_where_beta_is_zero_and_its_score_is_the_lowest():
    rule = make_rule(dim=2, alpha=0.0, beta=0.0)
    server, agent = rule.server(), rule.agent("a")
    agent.adopt(server.receive(agent.observe([1.0, 0.0], -1.0)))  # θ̂ = (−1/2, 0)
    for number in (np.inf, 1e71):
        with pytest.raises(errors.NotFinite):
            agent.choose(np.array([[1.0, 0.0], [number, 0.0]]))


def test_growth_is_counted_anew_after_an_exception_between_a_model_and_its_growth(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    rule = make_rule(dim=2, alpha=1.0)
    server, agent = rule.server(), rule.agent("a")
    reply = server.receive(agent.observe([2.0, 0.0], 1.0))
    agent.observe([0.0, 0.9], 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(GrowthTracker, "restart", interrupted)
        with pytest.raises(KeyboardInterrupt):
            agent.adopt(reply)
    agent.observe([0.0, 0.1], 1.0)
    assert agent.growth == pytest.approx(np.log(1.0 + 0.81 + 0.01))


# -- growing sizes


def test_agents_hold_no_matrices_of_their_own_before_they_act():
    rule = make_rule(dim=50)
    one, two = rule.agent("a"), rule.agent("b")
    assert one.model is two.model


def test_four_hundred_features_work():
    fleet = SimulatedFleet(make_rule(dim=400, alpha=1e3), 1)
    agent = fleet.agent("0")
    rng = np.random.default_rng(0)
    for _ in range(30):
        decision = agent.choose(rng.standard_normal((5, 400)))
        upload = agent.observe(decision, 1.0)
        if upload is not None:
            fleet.exchange(upload)
    assert agent.model_version > 0
    assert agent.growth == pytest.approx(
        np.linalg.slogdet(agent.model.stats.Sigma + agent.local.Sigma)[1] - agent.model.log_det, abs=1e-6
    )


def test_one_feature_works_with_tiny_and_with_huge_ridges():
    for lam in (1e-6, 1e6):
        fleet = play(make_rule(dim=1, lam=lam, alpha=0.5), 200)
        for agent in fleet.agents.values():
            known = agent.model.stats
            assert agent.model.theta_hat[0] == pytest.approx(known.b[0] / known.Sigma[0, 0])
        assert fleet.n_up > 0 or lam == 1e6
