"""Bad arguments everywhere: only named errors come out of public functions, and no traceback out of a command."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.errors import FedbanditError
from fedbandit.experiments.advice.advise import advise
from fedbandit.experiments.advice.log import history, log_from_arrays
from fedbandit.experiments.planner import PlannedFleet
from fedbandit.experiments.spec import make_spec

BAD: dict[str, Any] = {
    "None": None,
    "empty text": "",
    "text": "nonsense",
    "a number as text": "3",
    "bytes": b"x",
    "minus one": -1,
    "zero": 0,
    "a fraction": 1.5,
    "a whole float": 2.0,
    "NaN": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "True": True,
    "a list": [],
    "a list of text": ["a", None],
    "a dictionary": {},
    "an array": np.array([np.nan, 1.0]),
    "ragged": [[1.0], [1.0, 2.0]],
    "an object": object(),
    "a class": dict,
}

RULE: dict[str, Any] = {"dim": 2, "beta": 0.5}
RADIUS: dict[str, Any] = {"noise_scale": 0.3, "theta_bound": 1.0, "delta": 0.1}
FEATURES = np.arange(24.0).reshape(4, 3, 2) / 24
WORLD = {"dim": 2, "n_actions": 3, "noise": 0.1}


@dataclass
class Case:
    """A function, arguments that work, and what else is done with its result."""

    call: Callable[..., Any]
    good: dict[str, Any] = field(default_factory=dict)
    then: Callable[[Any], Any] = lambda result: result

    def run(self, arguments: dict[str, Any]) -> Any:
        positional = [
            arguments[name]
            for name, parameter in inspect.signature(self.call).parameters.items()
            if parameter.kind is parameter.POSITIONAL_ONLY and name in arguments
        ]
        return self.then(self.call(*positional, **arguments))


def a_run(rule: Any) -> None:
    """What a rule is for, in three rounds."""
    fb.simulate(rule, fb.worlds.uniform(dim=rule.dim, n_actions=2), n_agents=2, n_rounds=3, engine="reference")


def on_a_fixed_set(rule: Any) -> None:
    world = fb.worlds.fixed_set(dim=rule.dim, n_actions=3)
    fb.simulate(rule, world, n_agents=2, n_rounds=4, engine="reference")


def on_fixed_features(rule: Any) -> None:
    world = fb.worlds.fixed_features(dim=rule.dim, n_actions=rule.n_arms, shortest=min(rule.shortest, 1.0))
    fb.simulate(rule, world, n_agents=2, n_rounds=4, engine="reference")


def played(world: Any) -> None:
    rule = fb.FedLinUCB(dim=world.dim, beta=0.5)
    fb.simulate(rule, world, n_agents=2, n_rounds=3, engine="reference")


def shown(pattern: Any) -> None:
    rule, world = fb.FedLinUCB(**RULE), fb.worlds.uniform(dim=2, n_actions=2)
    fb.simulate(rule, world, n_agents=3, n_rounds=3, participation=pattern, engine="reference")


def with_radius(radius: Any) -> None:
    fb.FedLinUCB(dim=2, alpha=1.0, beta=radius).agent("a").choose(np.eye(2))


def with_ball(ball: Any) -> None:
    fb.FedLinUCB(dim=ball.dim, beta=0.5).agent("a").choose(ball)


def an_agent() -> Any:
    return fb.FedLinUCB(**RULE, alpha=0.0).agent("a")


def a_log() -> Any:
    rng = np.random.default_rng(0)
    return log_from_arrays(rng.standard_normal((60, 2)), rng.standard_normal(60), agents=np.arange(60) % 2)


def connect_in_a_loop(**options: Any) -> None:
    async def application() -> None:
        async with fb.aconnect(**options):
            pass

    asyncio.run(application())


CASES: dict[str, Case] = {
    "FedLinUCB": Case(
        fb.FedLinUCB,
        {**RULE, "lam": 1.0, "features": ("a", "b"), "alpha": 1.0, "join": True, "refresh": "upload"}
        | {"trigger": "determinant", "min_upload": 1},
        a_run,
    ),
    "OFUL": Case(fb.OFUL, {**RULE, "lam": 1.0, "mode": "shared", "switching": None}, a_run),
    "AsyncLinUCB": Case(fb.AsyncLinUCB, {**RULE, "gamma_up": 2.0, "gamma_down": 2.0, "enrolment": "start"}, a_run),
    "DisLinUCB": Case(fb.DisLinUCB, {**RULE, "threshold": 1.0, "enrolment": "start"}, a_run),
    "DCB": Case(fb.DCB, {**RULE, "lam": 1.0, "mass": "fleet", "seed": 0}, a_run),
    "DCCB": Case(
        fb.DCCB,
        {**RULE, "mass": "fleet", "noise_scale": 0.1, "kappa": 0.1, "delta": 0.1, "threshold": None},
        a_run,
    ),
    "DELB": Case(fb.DELB, {"dim": 2, "n_steps": 2, "C": 0.5}, on_a_fixed_set),
    "FedPE": Case(
        fb.FedPE,
        {
            "dim": 2,
            "n_arms": 2,
            "n_steps": 2,
            "parameters": "shared",
            "shortest": 0.5,
            "delta": 0.1,
            "width_factor": 10.0,
        },
        on_fixed_features,
    ),
    "CLUB": Case(fb.CLUB, {**RULE, "lam": 1.0, "edge_width": 1.0, "density": 3.0, "seed": 0}, a_run),
    "FedSupLinUCB": Case(fb.FedSupLinUCB, {**RULE, "n_rounds": 9, "alpha": 0.1, "upper_beta": 0.5}, a_run),
    "FedGLBUCB": Case(
        fb.FedGLBUCB,
        {"dim": 2, "n_agents": 2, "threshold": 1.0, "link": "logistic", "mode": "federated", "lam": 1.0, "scale": 0.1}
        | {"noise_scale": 0.5, "theta_bound": 1.0, "action_bound": 1.0, "delta": 0.1},
        a_run,
    ),
    "FedUCB": Case(
        fb.FedUCB,
        {"dim": 2, "n_agents": 2, "n_steps": 4, "schedule": "corrected", "epsilon": 1.0, "delta": 0.1, "threshold": 1.0}
        | {"batch": 1, "beta": 0.5, "lam": 1.0, "noise_scale": 0.5, "theta_bound": 1.0, "action_bound": 1.0}
        | {"reward_bound": 1.0, "failure": 0.1, "seed": 0},
        a_run,
    ),
    "Ball": Case(fb.Ball, {"dim": 2, "radius": 1.0}, with_ball),
    "HashingFeatures": Case(
        fb.HashingFeatures,
        {"dim": 8, "crosses": [("a", "b")], "bias": True, "seed": 0},
        lambda hashing: hashing([{"a": 1, "b": "x"}]),
    ),
    "HashingFeatures of": Case(lambda records: fb.HashingFeatures(dim=8)(records), {"records": [{"a": 1}]}),
    "HashingFeatures of a record": Case(lambda value: fb.HashingFeatures(dim=8)([{"a": value}]), {"value": 1}),
    "block_features": Case(fb.block_features, {"context": [0.5], "n_arms": 2, "bias": True}),
    "arm_features": Case(fb.arm_features, {"context": [0.5], "arms": ["a"], "features": ["h@a", "1@a", "h@b", "1@b"]}),
    "arm_features by name": Case(
        lambda value: fb.arm_features({"h": value}, ["a"], features=["h@a", "1@a"]), {"value": 0.5}
    ),
    "RidgeModel": Case(fb.RidgeModel, {"stats": fb.SufficientStats.prior(dim=2, lam=1.0)}, lambda m: m.theta_hat),
    "SufficientStats": Case(fb.SufficientStats.of, {"X": np.eye(2), "y": [1.0, 2.0]}),
    "SufficientStats.prior": Case(fb.SufficientStats.prior, {"dim": 2, "lam": 1.0}),
    "load": Case(fb.load, {"blob": an_agent().to_bytes()}),
    "simulate": Case(
        fb.simulate,
        {"rule": fb.FedLinUCB(**RULE), "world": fb.worlds.uniform(**WORLD), "n_agents": 2, "n_rounds": 4, "seed": 0}
        | {"participation": "zipf", "record": "all", "progress": None, "engine": "reference"},
    ),
    "simulate, compiled": Case(
        fb.simulate,
        {"rule": fb.FedLinUCB(**RULE), "world": fb.worlds.uniform(**WORLD), "n_agents": 2, "n_rounds": 4, "seed": 0}
        | {"participation": "zipf", "record": [2]},
    ),
    "worlds.uniform": Case(fb.worlds.uniform, WORLD, played),
    "worlds.sphere": Case(fb.worlds.sphere, WORLD, played),
    "worlds.articles": Case(fb.worlds.articles, {**WORLD, "n_articles": 5}, played),
    "worlds.ball": Case(fb.worlds.ball, {"dim": 2, "radius": 1.0, "noise": 0.1}, played),
    "worlds.adversarial": Case(fb.worlds.adversarial, {**WORLD, "gap": 0.1, "phase": 3}, played),
    "worlds.logistic": Case(fb.worlds.logistic, {"dim": 2, "n_actions": 2, "n_articles": 3, "theta_norm": 1.0}, played),
    "worlds.fixed_set": Case(fb.worlds.fixed_set, WORLD, played),
    "worlds.fixed_features": Case(fb.worlds.fixed_features, {**WORLD, "shortest": 0.5, "shared": True}, played),
    "worlds.clusters": Case(fb.worlds.clusters, {**WORLD, "n_clusters": 2, "spread": 0.1}, played),
    "worlds.from_arrays": Case(
        fb.worlds.from_arrays,
        {"features": FEATURES, "rewards": FEATURES[:, :, 0], "agents": [0, 1, 0, 1], "shuffle": True, "noise": 0.1},
        played,
    ),
    "worlds.reseed": Case(
        fb.worlds.reseed, {"stream": fb.worlds.uniform(**WORLD).stream(np.random.SeedSequence(0)), "seed": 1}
    ),
    "worlds.from_parquet": Case(fb.worlds.from_parquet, {"path": "nowhere.parquet"}),
    "worlds.real": Case(fb.worlds.real, {"name": "wine", "n_agents": 2}),
    "worlds.reactive": Case(
        fb.worlds.reactive,
        {"actions": lambda history, agent, rng: np.eye(2), "theta_star": [0.6, 0.8], "noise": 0.1}
        | {"noise_kind": "signs"},
        played,
    ),
    "participation.reactive": Case(
        fb.participation.reactive, {"agent": lambda history, n_agents, rng: len(history) % n_agents}, shown
    ),
    "participation.uniform": Case(fb.participation.uniform, {}, shown),
    "participation.round_robin": Case(fb.participation.round_robin, {}, shown),
    "participation.steps": Case(fb.participation.steps, {}, shown),
    "participation.zipf": Case(fb.participation.zipf, {"exponent": 1.0}, shown),
    "participation.bursts": Case(fb.participation.bursts, {"length": 2.0}, shown),
    "participation.outages": Case(fb.participation.outages, {"fraction": 0.5, "length": 5}, shown),
    "participation.random_episodes": Case(fb.participation.random_episodes, {"probability": 0.5}, shown),
    "participation.sequence": Case(fb.participation.sequence, {"agents": [0, 1, 0], "repeat": True}, shown),
    "participation.episodes": Case(fb.participation.episodes, {"sets": [[0], [1, 0]]}, shown),
    "participation.by_rows": Case(
        fb.participation.by_rows,
        {"world": fb.worlds.from_arrays(FEATURES, FEATURES[:, :, 0], agents=[0, 1, 0, 1])},
        shown,
    ),
    "radius.fixed": Case(fb.radius.fixed, {"beta": 1.0}, with_radius),
    "radius.exogenous": Case(fb.radius.exogenous, RADIUS, with_radius),
    "radius.counted": Case(fb.radius.counted, RADIUS, with_radius),
    "radius.adaptive": Case(fb.radius.adaptive, {**RADIUS, "n_agents": 2, "n_rounds": 9}, with_radius),
    "radius.paper": Case(fb.radius.paper, {**RADIUS, "n_agents": 2, "n_rounds": 9, "action_bound": 1.0}, with_radius),
    "radius.from_dict": Case(fb.radius.from_dict, {"data": {"kind": "fixed", "beta": 1.0}}, with_radius),
    "radius.as_radius": Case(fb.radius.as_radius, {"beta": 1.0}, with_radius),
    "agent": Case(fb.FedLinUCB(**RULE).agent, {"agent_id": "a"}),
    "agent.choose": Case(lambda actions: an_agent().choose(actions), {"actions": np.eye(2)}),
    "agent.choose_many": Case(lambda actions: an_agent().choose_many(actions), {"actions": np.ones((2, 3, 2))}),
    "agent.predict": Case(lambda actions: an_agent().predict(actions), {"actions": np.eye(2)}),
    "agent.observe": Case(lambda x, reward: an_agent().observe(x, reward), {"x": [1.0, 0.0], "reward": 1.0}),
    "agent.partial_fit": Case(lambda X, y: an_agent().partial_fit(X, y), {"X": np.eye(2), "y": [0.0, 1.0]}),
    "agent.adopt": Case(lambda message: an_agent().adopt(message), {"message": fb.Receipt("a", 0)}),
    "server.receive": Case(
        lambda message: fb.FedLinUCB(**RULE).server().receive(message), {"message": fb.Pull("a", "1")}
    ),
    "connect": Case(
        fb.connect,
        {"url": "http://127.0.0.1:9", "model": "m", "token": "fb_" + "x" * 43, "agent": "a", "state_dir": None}
        | {"durability": "fast", "sync": "inline", "refresh_after_s": 1.0, "timeout_s": 1.0, "min_upload": 1}
        | {"max_pending": 10, "keep_mb": 1.0, "rejoin": False, "ca": None, "cert": None, "key": None},
    ),
    "aconnect": Case(
        connect_in_a_loop,
        {"url": "http://127.0.0.1:9", "model": "m", "token": "fb_" + "x" * 43, "agent": "a", "sync": "inline"}
        | {"offline_ok": True, "settings": {"dim": 2, "beta": 1.0}},
    ),
    "slots": Case(fb.slots, {"directory": "state", "n": 2, "token": None, "agent": None, "wait_s": 1.0}),
    "log_from_arrays": Case(
        log_from_arrays,
        {"x": np.eye(2), "rewards": [0.0, 1.0], "agents": [0, 1], "propensities": [0.5, 0.5], "offers": None}
        | {"chosen": None},
    ),
    "log_from_arrays, offers": Case(
        log_from_arrays, {"x": None, "rewards": [0.0, 1.0], "offers": np.ones((2, 3, 2)), "chosen": [0, 2]}
    ),
    "history": Case(history, {"log": a_log(), "lam": 1.0, "agent_id": "history"}),
    "advise": Case(
        partial(advise, alphas=(1.0,)),
        {"log": a_log(), "seed": 0, "n_seeds": 2, "n_rounds": 9, "beta": 0.5, "messages": 5},
    ),
    "make_spec": Case(
        make_spec,
        {"rule": fb.FedLinUCB(**RULE), "world": fb.worlds.uniform(**WORLD), "n_agents": 2, "n_rounds": 9}
        | {"participation": None, "record": "log"},
    ),
    "planner.Fleet": Case(
        PlannedFleet,
        {"n_agents": 2, "dim": 2, "n_rounds": 9, "lam": 1.0, "noise": 0.1, "theta_bound": 1.0, "action_bound": 1.0}
        | {"delta": 0.1},
    ),
}

# Values that pass between our own parts: nobody makes them by hand, and the wire checks them (tests/contracts).
VALUES = {"Decision", "Download", "LiveAgent", "Poll", "Pull", "Receipt", "Trace", "Upload"}


def theory_cases() -> Iterator[tuple[str, Case]]:
    """Every function of fb.theory with numbers that work."""
    numbers: dict[str, Any] = {"dim": 3, "n_agents": 2, "n_rounds": 100, "alpha": 0.5, "lam": 1.0, "delta": 0.1}
    numbers |= {"trigger": "determinant", "noise_scale": 0.3, "theta_bound": 1.0, "action_bound": 1.0}
    for name, function in inspect.getmembers(fb.theory, inspect.isfunction):
        if function.__module__ == fb.theory.__name__ and not name.startswith("_"):
            yield f"theory.{name}", Case(function, {key: numbers.get(key, 1) for key in _needed(function)})


def _needed(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def algorithm_cases() -> Iterator[tuple[str, Case]]:
    """Every registered algorithm with its example numbers."""
    for entry in ALGORITHMS.own().values():
        if entry.traits >= {"any-time", "any-rows"}:
            yield f"algorithm {entry.name}", Case(entry.rule, {**RULE, **entry.fixed, **entry.example}, a_run)


ALL_CASES = {**dict(algorithm_cases()), **CASES, **dict(theory_cases())}


def raw_errors(case: Case) -> dict[str, str]:
    """Arguments that came out as anything else than a named error, and as what."""
    found = {}
    for name, good in case.good.items():
        if isinstance(good, bool) or name == "progress":  # anything is true or false; a function may do anything
            continue
        for label, value in BAD.items():
            try:
                case.run({**case.good, name: value})
            except FedbanditError as error:
                if len(str(error)) < 10:
                    found[f"{name} = {label}"] = f"says too little: {error}"
            except Exception as error:  # noqa: BLE001 - whatever else comes is what is looked for
                found[f"{name} = {label}"] = f"{type(error).__name__}: {error}"
    return found


@pytest.mark.parametrize("name", ALL_CASES)
def test_bad_arguments_are_named_errors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a text may be a directory's name
    assert raw_errors(ALL_CASES[name]) == {}


@pytest.mark.parametrize("name", sorted(ALL_CASES.keys() - {"connect", "worlds.from_parquet", "advise"}))
def test_the_good_arguments_are_good(name: str) -> None:
    ALL_CASES[name].run(ALL_CASES[name].good)


def test_every_public_function_is_in_the_table() -> None:
    public = {name for name in fb.__all__ if callable(getattr(fb, name))} - VALUES
    modules = {"worlds": fb.worlds, "participation": fb.participation, "radius": fb.radius}
    for prefix, module in modules.items():
        public |= {
            f"{prefix}.{name}"
            for name, thing in vars(module).items()
            if name.islower() and not name.startswith("_") and _is_made_there(thing, module.__name__)
        }
    helpers = {"worlds.block_size", "worlds.generator", "worlds.sample_rows", "worlds.unit_rows"}
    assert public - helpers - {"participation.as_pattern", "radius.to_dict"} - ALL_CASES.keys() == set()


def _is_made_there(thing: Any, module: str) -> bool:
    return callable(thing) and getattr(thing, "__module__", "") == module


def test_replies_may_come_from_any_iterable() -> None:
    agent = an_agent()
    agent.adopt(reply for reply in [fb.Receipt("a", 0), fb.Receipt("another", 0)])
