"""Histories that hypothesis writes: who sees what, and what the network does to it."""

from hypothesis import strategies as st

from tests.builders import FaultyNetwork

DIM = 2
# Multiples of 1/8: sums of their products are exact in any order, so truths about sums can be demanded to the bit.
eighths = st.integers(-24, 24).map(lambda i: i / 8)
features = st.tuples(eighths, eighths)
fates = st.sampled_from(["ok", "ok", "request lost", "reply lost", "request twice", "reply twice"])


def events(n_agents: int):
    """One thing that happens."""
    agents = st.integers(0, n_agents - 1).map(str)
    return st.one_of(
        st.tuples(st.just("observe"), agents, features, eighths, fates),
        st.tuples(st.just("observe"), agents, features, eighths, fates),
        st.tuples(st.just("send"), agents, fates),
        st.tuples(st.just("pull"), agents, fates),
        st.tuples(st.just("late"), st.integers(0, 50)),
    )


def histories(n_agents: int = 3, max_size: int = 40):
    """What happens to a fleet, one event after another."""
    return st.lists(events(n_agents), min_size=1, max_size=max_size)


def happen(network: FaultyNetwork, event) -> None:
    """Let one event happen."""
    kind, *details = event
    if kind == "observe":
        agent_id, x, reward, fate = details
        network.observe(agent_id, list(x), reward, fate)
    elif kind == "send":
        network.send(*details)
    elif kind == "pull":
        network.pull(*details)
    else:
        network.deliver_late(*details)
