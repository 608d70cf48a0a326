"""Live agents with a policy that draws at random: the library's decisions, also after a kill."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.core.counter_random import CounterRandom
from fedbandit.errors import InvalidInput
from fedbandit.wire.policy_choice import PolicyChoice
from fedbandit.wire.settings import ModelSettings
from tests.live import running_server
from tests.sdk.helpers import make_hub, make_live

CHOICES = [
    {"explore": 0.4},
    {"policy": "inverse-gap", "explore": 0.1},
    {"policy": "thompson", "propensity_samples": 7, "policy_seed": 3},
]
SETS = [np.random.default_rng(seed).standard_normal((4, 3)) for seed in range(30)]


def settings(**choice):
    return ModelSettings("news", 3, 1.0, 1.0, fb.radius.fixed(0.5), policy=PolicyChoice(**choice))


@pytest.mark.parametrize("choice", CHOICES)
def test_settings_carry_the_policy_and_nothing_where_it_is_the_default(choice):
    made = settings(**choice)
    assert ModelSettings.from_dict(made.to_dict()) == made
    assert choice.items() <= made.to_dict().items()
    assert PolicyChoice.of(made.rule()) == made.policy
    assert not set(settings().to_dict()) & set(PolicyChoice().numbers)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_live_agent_draws_what_the_library_draws(choice):
    with make_live(make_hub(**choice), sync="inline") as agent:
        incarnation = agent.status().incarnation
        alone = fb.FedLinUCB(dim=3, alpha=0.0, beta=0.5, **choice).agent("a", incarnation=incarnation)
        for X in SETS:
            live = agent.choose(X)
            alone._decisions = iter([int(live.id.rpartition("-")[2])])  # snapshots take numbers, too
            same = alone.choose(X)
            assert (live.index, live.propensity, live.score, live.policy) == (
                same.index,
                same.propensity,
                same.score,
                same.policy,
            )
        with pytest.raises(InvalidInput, match="probability of a list"):
            agent.choose(SETS[0], k=2)
        assert [d.propensity is not None for d in agent.choose_many(SETS[:3])] == [True] * 3


PROGRAM = """
import json, sys
import numpy as np
import fedbandit as fb
url, token, folder, first, last = sys.argv[1:]
agent = fb.connect(url, model="news", token=token, agent="a", state_dir=folder)
for n in range(int(first), int(last)):
    decision = agent.choose(np.random.default_rng(n).standard_normal((4, 3)))
    print(json.dumps(decision.to_dict()), flush=True)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_agent_keeps_what_pending_decisions_told_and_draws_on(tmp_path):
    with running_server(tmp_path / "server") as server:
        server.add_model("news", dim=3, alpha=1.0, beta=0.5, policy="inverse-gap", gamma=2.0, explore=0.25)
        assert server.show("news")["policy"] == "inverse-gap"
        token, folder = server.add_agent("news", "a"), tmp_path / "agent"
        made = []
        for first in (0, 10):
            command = [sys.executable, "-c", PROGRAM, server.url, token, str(folder), str(first), str(first + 10)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
                for line in child.stdout:
                    if line.strip() == "ready":
                        break
                    made.append(fb.Decision.from_dict(json.loads(line)))
                os.kill(child.pid, signal.SIGKILL)
        with fb.connect(server.url, model="news", token=token, agent="a", state_dir=folder) as agent:
            assert [d.to_dict() for d in agent.pending] == [d.to_dict() for d in made] and len(made) == 20
            incarnation = agent.status().incarnation
        assert all(d.policy == "inverse-gap" and 0 < d.propensity < 1 and d.score is not None for d in made)
        coin = CounterRandom(seed=0, agent_id="a", incarnation=incarnation, purpose="explore")
        for decision in made:
            number = int(decision.id.rpartition("-")[2])
            if coin.uniform(number, 0) < 0.25:
                assert decision.index == coin.index(number, 4, 1)


@pytest.mark.parametrize(
    "bad", [{"policy": "greedy"}, {"explore": 2}, {"gamma": "wide"}, {"gamma": -1}, {"propensity_samples": -1}]
)
def test_a_server_refuses_a_policy_that_does_not_exist(bad):
    with pytest.raises(fb.errors.InvalidParameter):
        settings(**bad)
