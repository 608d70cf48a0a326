"""Contracts of any agent: numbers of rules, names of agents, saved states."""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from fedbandit import errors
from fedbandit.algorithms.catalog import rule_from_dict
from fedbandit.algorithms.snapshot import load
from fedbandit.simulation.runner import SimulatedFleet
from fedbandit.testing.contracts import ROUNDS, Subject, contract, play_round, raising, state_of


@contract()
def _a_rule_survives_the_trip_through_plain_values(subject: Subject) -> None:
    named = {"features": tuple(f"x{i}" for i in range(subject.dim))}
    rule = subject.changed(**named) if hasattr(subject.rule, "features") else subject.rule
    data = json.loads(json.dumps(rule.to_dict()))
    again = rule_from_dict(data)
    assert type(again) is type(rule) and again.to_dict() == rule.to_dict()
    with raising(errors.InvalidParameter, "cannot be made"):
        rule_from_dict({**data, "gamma_sideways": 1.0})
    with raising(errors.InvalidParameter, "expected an algorithm among"):
        rule_from_dict({**data, "algorithm": "Magic"})


@contract()
def _numbers_out_of_range_are_named_errors(subject: Subject) -> None:
    nan, inf = float("nan"), float("inf")
    bad: dict[str, tuple[Any, ...]] = {
        "dim": (0, 2.5, "three"),
        "lam": (0.0, -1.0, nan, inf),
        "beta": (-0.5, nan, "wide"),
        "features": (["a"] * (subject.dim + 1),),
    }
    names = {one.name for one in dataclasses.fields(subject.rule)}  # type: ignore[arg-type]
    for name in bad.keys() & names:
        for value in bad[name]:
            with raising(errors.InvalidParameter):
                subject.changed(**{name: value})


@contract()
def _an_agent_needs_a_name_that_fits_into_an_address(subject: Subject) -> None:
    for bad in ("", "two words", "x" * 201, "line\n"):
        with raising(errors.InvalidParameter, "agent id"):
            subject.rule.agent(bad)
    assert subject.rule.agent("shop-7").agent_id == "shop-7"


@contract("saves", *ROUNDS)
def _a_saved_fleet_continues_with_identical_choices_and_uploads(subject: Subject) -> None:
    ways: tuple[Callable[[Any], Any], ...] = (
        lambda thing: load(thing.to_bytes()),
        lambda thing: pickle.loads(pickle.dumps(thing)),
    )
    for copy, n_before in itertools.product(ways, (0, 3, 60)):
        original, restored = subject.played(n_before), subject.fleet()
        restored.server = copy(original.server)
        restored.agents = {key: copy(agent) for key, agent in original.agents.items()}
        _play_alike(subject, original, restored)


def _play_alike(subject: Subject, original: SimulatedFleet, restored: SimulatedFleet) -> None:
    rng = np.random.default_rng(1)
    for _ in range(120):
        agent_id, actions = str(rng.integers(2)), rng.standard_normal((5, subject.dim))
        reward = float(rng.standard_normal())
        assert play_round(restored, agent_id, actions, reward) == play_round(original, agent_id, actions, reward)
    assert restored.server.stats == original.server.stats
    for key, agent in original.agents.items():
        twin = restored.agents[key]
        assert (twin.n_rounds, twin.n_switches) == (agent.n_rounds, agent.n_switches)
        assert np.array_equal(twin.predict(np.eye(subject.dim)), agent.predict(np.eye(subject.dim)))


@contract("saves", *ROUNDS)
def _pending_decisions_and_uploads_in_flight_are_saved(subject: Subject) -> None:
    agent, X = subject.agent(), subject.rows(4)
    pending, done = agent.choose(X), agent.choose(X)
    agent.observe(done, 1.0)
    for seed in range(30):
        agent.observe(subject.rows(1, seed=seed)[0], 1.0)
    restored = load(agent.to_bytes())
    assert state_of(restored) == state_of(agent) and restored.in_flight == agent.in_flight
    with raising(errors.AlreadyObserved):
        restored.observe(done, 1.0)
    restored.observe(pending, 1.0)
    fresh = restored.choose(X)
    assert fresh.id not in (pending.id, done.id)
    restored.observe(fresh, 1.0)


@contract("saves")
def _bytes_that_are_no_snapshot_are_a_named_error(subject: Subject) -> None:
    blob = subject.agent().to_bytes()
    for bad in (b"", b"\x00", b"nonsense", blob[: len(blob) // 2], pickle.dumps({}), blob + b"x"):
        with raising(errors.FormatError):
            load(bad)
    data = msgspec.msgpack.decode(blob)
    with raising(errors.UnsupportedFormat, "version"):
        load(msgspec.msgpack.encode({**data, "version": 2}))
    for key in data["state"]:
        damaged = {**data, "state": {k: v for k, v in data["state"].items() if k != key}}
        with raising(errors.FormatError, "damaged"):
            load(msgspec.msgpack.encode(damaged))
