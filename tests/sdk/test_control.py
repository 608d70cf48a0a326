"""Rewards by group of a live agent: counted exactly once, whatever is killed, interrupted, lost or restored."""

import numpy as np
import pytest

from fedbandit.core.group_sums import GroupSums
from tests.sdk.helpers import Way, as_if_killed, make_hub, make_live
from tests.sdk.stub import running_stub
from tests.sdk.test_interrupted import INF, interrupted
from tests.sdk.test_processes import kill_again_and_again

Q = 0.4
X = np.eye(3)
REWARDS = {"control": 1.0, "treatment": 2.0}  # sums by group tell what was mixed up


def require_sorted(groups: GroupSums, n: int) -> None:
    """All n rewards are there once, each in its own group."""
    assert groups.n_obs == n
    assert groups.control.reward_sum == groups.control.n_obs
    assert groups.treatment.reward_sum == 2.0 * groups.treatment.n_obs
    assert groups.treatment.reward_sq_sum == 4.0 * groups.treatment.n_obs


def held(hub, agent) -> GroupSums:
    """What the server, the upload in flight if it is not merged, and the buffer hold."""
    durable = agent._durable
    durable.finish()
    flight, merged = durable.agent.in_flight, hub.server.ledger.get("a")
    total = hub.server.groups + durable.agent.local_groups
    if flight is None or (merged is not None and merged.sequence == flight.sequence):
        return total
    return total + flight.groups


def play(agent, n, *, default=None):
    for _ in range(n):
        decision = agent.choose(X, default=default)
        agent.observe(decision, REWARDS[decision.group])


@pytest.mark.parametrize("alpha", [0.2, 100.0])
def test_an_agent_killed_at_random_moments_counts_each_reward_in_its_group_once(tmp_path, alpha):
    hub = make_hub(alpha=alpha, control=Q)
    with running_stub(hub) as stub:
        kill_again_and_again(stub.url, "local", stub.token, tmp_path / "state", 3000, n_kills=5, seed=2)
    assert hub.server.stats.n_obs == 3000
    require_sorted(hub.server.groups, 3000)
    share = hub.server.groups.control.n_obs / 3000
    assert share == pytest.approx(Q, abs=5 * np.sqrt(Q * (1 - Q) / 3000))


@pytest.mark.parametrize(("place", "alpha"), [("memory", 0.0), ("fast", 5.0), ("fast", INF)])
def test_an_exception_at_any_line_of_observe_leaves_each_reward_in_its_group_once(tmp_path, place, alpha):
    hub = make_hub(alpha=alpha, control=Q)
    options = {} if place == "memory" else {"state_dir": tmp_path / "state"}
    n, whole = 0, 0
    with make_live(hub, sync="inline", **options) as agent:
        while whole < 3:
            decision = agent.choose(X)
            reward = REWARDS[decision.group]
            _, was_interrupted = interrupted(n, lambda d=decision, r=reward: agent.observe(d, r))
            whole = 0 if was_interrupted else whole + 1
            if decision.id in agent.pending:
                agent.observe(decision, reward)
            n += 1
            require_sorted(held(hub, agent), n)
        agent.flush(5.0)
        require_sorted(hub.server.groups, n)


def test_a_killed_agent_knows_the_groups_of_pending_decisions_and_of_its_log(tmp_path):
    hub = make_hub(alpha=INF, control=Q)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        play(agent, 20)
        agent._durable.save()
        play(agent, 20)
        pending = [agent.choose(X, default=1) for _ in range(20)]
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    assert {decision.group for decision in pending} == {"control", "treatment"}
    with make_live(hub, state_dir=copy, sync="inline") as again:
        require_sorted(held(hub, again), 40)
        for decision in pending:
            kept = again.pending.get(decision.id)
            assert (kept.group, kept.propensity) == (decision.group, decision.propensity)
            again.observe(kept, REWARDS[kept.group])
        again.flush(5.0)
    require_sorted(hub.server.groups, 60)


def test_a_lost_reply_and_its_retry_count_once_and_the_bytes_are_the_same(tmp_path):
    hub = make_hub(alpha=INF, control=Q)
    way = Way(hub)
    with make_live(way, state_dir=tmp_path / "state", sync="inline") as agent:
        play(agent, 30)
        way.faults.append("lost reply")
        agent.flush(5.0)
    require_sorted(hub.server.groups, 30)
    assert len(way.bodies) == 2 and way.bodies[0] == way.bodies[1]


def test_a_server_that_went_back_gets_the_same_groups_again(tmp_path):
    hub = make_hub(alpha=INF, control=Q)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        play(agent, 10)
        agent.flush(5.0)
        backup = hub.server.to_bytes()
        play(agent, 10)
        agent.flush(5.0)
        play(agent, 10)
        agent._durable.save()
        import fedbandit as fb

        hub.server = fb.load(backup)
        agent.flush(5.0)
        require_sorted(hub.server.groups, 30)
