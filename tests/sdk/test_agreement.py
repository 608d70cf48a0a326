"""A live fleet and the simulator agree: the same seeds, inline sync, the same choices to the last."""

import pytest

import fedbandit as fb
from fedbandit.sdk import LocalServer, open_agent
from fedbandit.simulation.participation import Even
from fedbandit.simulation.runner import rounds_of, value_of
from tests.live import running_server


def live_choices(open_one, world, *, n_agents, n_rounds, seed):
    """Play a world with live agents; each joins when it is first active, as in the simulator. Choices, exchanges."""
    agents, choices, t = {}, [], 0
    stream, blocks = rounds_of(world, Even(), n_agents=n_agents, n_rounds=n_rounds, seed=seed)
    try:
        for active, block in blocks:
            for i in range(min(len(block), n_rounds - t)):
                t += 1
                name = str(active[i])
                if name not in agents:
                    agents[name] = open_one(name)
                actions = block.actions(i)
                decision = agents[name].choose(actions)
                mean, _ = value_of(decision.index, decision.x, actions, block, i, stream)
                agents[name].observe(decision, mean + float(block.noise[i]))
                choices.append(decision.index)
        return choices, sum(agent.status().exchanges for agent in agents.values())
    finally:
        for agent in agents.values():
            agent.close()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("journal", [False, True])
def test_live_agents_choose_what_the_simulator_chooses(tmp_path, seed, journal):
    rule = fb.FedLinUCB(dim=5, alpha=0.5, beta=0.5, join=True)
    world = fb.worlds.uniform(dim=5, n_actions=6, noise=0.3)
    hub = LocalServer(rule)

    def open_one(name):
        state_dir = tmp_path / name if journal else None
        return open_agent(hub.transport(name), model="local", sync="inline", state_dir=state_dir)

    trace = fb.simulate(rule, world, n_agents=6, n_rounds=600, seed=seed, record="all", engine="reference")
    choices, n_exchanges = live_choices(open_one, world, n_agents=6, n_rounds=600, seed=seed)
    assert choices == trace.choices.tolist()
    assert n_exchanges == trace.messages_up[-1]


def test_live_agents_on_a_real_server_choose_what_the_simulator_chooses(tmp_path):
    rule = fb.FedLinUCB(dim=5, alpha=0.5, beta=0.5, join=True)
    world = fb.worlds.uniform(dim=5, n_actions=6, noise=0.3)
    with running_server(tmp_path) as server:
        server.add_model("news", dim=5, alpha=0.5, beta=0.5)

        def open_one(name):
            token = server.add_agent("news", name)
            return fb.connect(
                server.url, model="news", token=token, agent=name, sync="inline", state_dir=tmp_path / f"agent-{name}"
            )

        trace = fb.simulate(rule, world, n_agents=6, n_rounds=600, seed=3, record="all", engine="reference")
        choices, n_exchanges = live_choices(open_one, world, n_agents=6, n_rounds=600, seed=3)
        assert choices == trace.choices.tolist()
        assert n_exchanges == trace.messages_up[-1] == server.show("news")["version"]
