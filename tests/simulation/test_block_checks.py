"""Worlds and participation patterns are user code: whatever they return, both engines raise the same named error."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.core.decision_sets import Ball
from fedbandit.errors import FedbanditError, InvalidParameter
from fedbandit.simulation.worlds import Block
from tests.simulation.engines import assert_same_trace, both_engines

M, D, K, N = 3, 4, 5, 16


@dataclass
class Stream:
    """Blocks of a stream, each changed by a function of its number."""

    kind: str
    change: Any
    theta_star: Any
    rng: np.random.Generator
    n_blocks: int = 0

    def draw(self, active: Any) -> Any:
        n = len(active)
        table = self.rng.standard_normal((7, D))
        means = self.rng.random((n, K))
        block = Block(self.rng.standard_normal(n), means, self.rng.standard_normal((n, K, D)))
        if self.kind == "table":
            rows = self.rng.integers(7, size=(n, K))
            block = Block(block.noise, means, table=table, rows=rows)
        if self.kind == "ball":
            block = Block(block.noise, decision_set=Ball(D, 1.0))
        self.n_blocks += 1
        return self.change(block, self.n_blocks)


@dataclass
class UserWorld:
    """A user's world of D features."""

    kind: str = "array"
    change: Any = lambda block, number: block
    theta_star: Any = None
    block_rounds: Any = N
    dim: int = D
    name: ClassVar[str] = "user"

    def stream(self, seed: np.random.SeedSequence) -> Stream:
        theta_star = np.ones(D) if self.kind == "ball" and self.theta_star is None else self.theta_star
        return Stream(self.kind, self.change, theta_star, np.random.default_rng(seed))


@dataclass
class UserPattern:
    """A user's participation pattern."""

    change: Any = lambda active: active
    name: ClassVar[str] = "user"

    def start(self, n_agents: int, rng: np.random.Generator) -> Any:
        return lambda n: self.change(rng.integers(n_agents, size=n))


def answers(world: Any, pattern: Any = None, rule: Any = None) -> list[tuple[str, str]]:
    """The response of each engine: the code and the message of its error, or None."""
    rule = rule or fb.FedLinUCB(dim=D, alpha=1.0, beta=0.5)
    said = []
    for engine in ("reference", "compiled", "auto"):
        try:
            fb.simulate(rule, world, n_agents=M, n_rounds=3 * N, participation=pattern, engine=engine)
            said.append(("", ""))
        except FedbanditError as error:
            said.append((error.code, str(error)))
    return said


def spoilt(array: Any, value: float) -> Any:
    changed = np.array(array, dtype=float)
    changed.flat[changed.size // 2] = value
    return changed


BAD_NUMBERS = [np.nan, np.inf, -np.inf, 1e71, -1e300]
BAD_BLOCKS: dict[str, Any] = {
    "actions of another dimension": lambda b: replace(b, array=b.array[:, :, :2]),
    "more features": lambda b: replace(b, array=np.zeros((N, K, D + 3))),
    "flat actions": lambda b: replace(b, array=b.array[0]),
    "no actions": lambda b: replace(b, array=b.array[:, :0], means=b.means[:, :0]),
    "fewer rounds": lambda b: replace(b, array=b.array[:3]),
    "fewer means": lambda b: replace(b, means=b.means[:, :2]),
    "means of fewer rounds": lambda b: replace(b, means=b.means[:2]),
    "short noise": lambda b: replace(b, noise=b.noise[:1]),
    "text": lambda b: replace(b, array=np.full((N, K, D), "x")),
    "not a block": lambda b: (b.noise, b.array),
    "nothing at all": lambda b: Block(b.noise, b.means),
    "no means and no theta_star": lambda b: replace(b, means=None),
    "too large together": lambda b: replace(b, means=np.full((N, K), 6e69), noise=np.full(N, 6e69)),
}
for bad in BAD_NUMBERS:
    BAD_BLOCKS[f"{bad} in actions"] = lambda b, bad=bad: replace(b, array=spoilt(b.array, bad))
    BAD_BLOCKS[f"{bad} in means"] = lambda b, bad=bad: replace(b, means=spoilt(b.means, bad))
    BAD_BLOCKS[f"{bad} in noise"] = lambda b, bad=bad: replace(b, noise=spoilt(b.noise, bad))
BAD_TABLES: dict[str, Any] = {
    "a row beyond the table": lambda b: replace(b, rows=spoilt(b.rows, 7).astype(int)),
    "a row far beyond the table": lambda b: replace(b, rows=spoilt(b.rows, 1e15).astype(int)),
    "a negative row": lambda b: replace(b, rows=spoilt(b.rows, -1).astype(int)),
    "rows as floats": lambda b: replace(b, rows=b.rows + 0.5),
    "an empty table": lambda b: replace(b, table=b.table[:0]),
    "a narrow table": lambda b: replace(b, table=b.table[:, :2]),
    "NaN in the table": lambda b: replace(b, table=spoilt(b.table, np.nan)),
}
BAD_AGENTS: dict[str, Any] = {
    "an agent beyond the fleet": lambda a: spoilt(a, M).astype(int),
    "an agent far beyond the fleet": lambda a: spoilt(a, 2**40).astype(int),
    "a negative agent": lambda a: spoilt(a, -1).astype(int),
    "fewer agents than rounds": lambda a: a[:3],
    "more agents than rounds": lambda a: np.concatenate([a, a]),
    "agents as floats": lambda a: a.astype(float),
    "agents by name": lambda a: [f"agent-{m}" for m in a],
    "nobody": lambda a: None,
}


@pytest.mark.parametrize("block_number", [1, 2])
@pytest.mark.parametrize("name", [*BAD_BLOCKS, *BAD_TABLES])
def test_a_bad_block_is_the_same_named_error_in_both_engines(name, block_number):
    make = BAD_BLOCKS.get(name) or BAD_TABLES[name]
    kind = "array" if name in BAD_BLOCKS else "table"
    said = answers(UserWorld(kind, lambda block, number: make(block) if number == block_number else block))
    assert said[0][0]
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("name", BAD_AGENTS)
def test_bad_agents_are_the_same_named_error_in_both_engines(name):
    said = answers(UserWorld(), UserPattern(BAD_AGENTS[name]))
    assert said[0][0]
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize("block_rounds", [0, -1, 2.5, "many"])
def test_a_block_has_at_least_one_round(block_rounds):
    said = answers(UserWorld(block_rounds=block_rounds))
    assert {code for code, _ in said} == {"invalid_parameter"}


@pytest.mark.parametrize("theta_star", [np.ones(D + 1), np.full(D, np.nan), "truth"])
def test_theta_star_has_one_finite_entry_per_feature(theta_star):
    for kind in ("array", "ball"):
        said = answers(UserWorld(kind, theta_star=theta_star))
        assert said[0][0]
        assert said[0] == said[1] == said[2]


def test_a_ball_of_another_dimension_is_refused():
    said = answers(UserWorld("ball", lambda block, number: replace(block, decision_set=Ball(D + 2, 1.0))))
    assert {code for code, _ in said} == {"dimension_mismatch"}


def test_a_block_of_decision_sets_has_the_noise_of_every_round():
    said = answers(UserWorld("ball", lambda block, number: replace(block, noise=block.noise[:1])))
    assert {code for code, _ in said} == {"dimension_mismatch"}


def test_means_follow_from_theta_star_where_a_block_has_none():
    for kind in ("array", "table"):
        world = UserWorld(kind, lambda block, number: replace(block, means=None), theta_star=np.ones(D))
        rule = fb.FedLinUCB(dim=D, alpha=1.0, beta=0.5)
        assert_same_trace(*both_engines(rule, world, n_agents=M, n_rounds=3 * N))


@pytest.mark.parametrize("first", ["ball", "array"])
def test_a_world_that_changes_its_kind_is_left_to_the_reference_or_refused(first):
    other = {"ball": "array", "array": "ball"}[first]

    def change(block: Block, number: int) -> Block:
        return block if number != 2 else Stream(other, lambda b, _: b, None, np.random.default_rng(0)).draw(block.noise)

    rule, world = fb.FedLinUCB(dim=D, alpha=1.0, beta=0.5), UserWorld(first, change, theta_star=np.ones(D))
    run: dict[str, Any] = {"n_agents": M, "n_rounds": 3 * N, "record": "all"}
    reported: list[int] = []
    auto = fb.simulate(rule, world, engine="auto", progress=reported.append, **run)
    assert_same_trace(fb.simulate(rule, world, engine="reference", **run), auto)
    assert sum(reported) == 3 * N
    with pytest.raises(InvalidParameter, match="ball to something else"):
        fb.simulate(rule, world, engine="compiled", **run)


@settings(max_examples=40)
@given(
    st.sampled_from([*BAD_BLOCKS, *BAD_TABLES, "none"]),
    st.sampled_from([*BAD_AGENTS, "none"]),
    st.integers(1, 3),
    st.sampled_from(["fedlinucb", "oful", "dislinucb", "async"]),
)
def test_no_world_reaches_a_kernel_unchecked(block_name, agents_name, block_number, rule_name):
    rules = {
        "fedlinucb": fb.FedLinUCB(dim=D, alpha=1.0, beta=0.5, join=True),
        "oful": fb.OFUL(dim=D, beta=0.5, mode="independent"),
        "dislinucb": fb.DisLinUCB(dim=D, beta=0.5, threshold=2.0),
        "async": fb.AsyncLinUCB(dim=D, beta=0.5, gamma_up=2.0, gamma_down=2.0),
    }
    make = BAD_BLOCKS.get(block_name) or BAD_TABLES.get(block_name) or (lambda block: block)
    world = UserWorld(
        "table" if block_name in BAD_TABLES else "array",
        lambda block, number: make(block) if number == block_number else block,
    )
    said = answers(world, UserPattern(BAD_AGENTS.get(agents_name, lambda a: a)), rules[rule_name])
    assert said[0] == said[1] == said[2]
    assert bool(said[0][0]) == (block_name != "none" or agents_name != "none")


def test_machine_code_is_kept_by_the_digest_of_all_its_sources(tmp_path):
    numba = pytest.importorskip("numba")
    from fedbandit.simulation.compiled import jit, lazy

    assert numba.config.CACHE_DIR == "" or "fedbandit-" not in numba.config.CACHE_DIR  # the application's own setting
    assert f"fedbandit-{jit.source_digest()}" in str(lazy.play_lazy.stats.cache_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("x = 1\n")
    before = jit.source_digest((tmp_path,))
    (tmp_path / "b.py").write_text("x = 2\n")  # same length
    assert jit.source_digest((tmp_path,)) != before


@pytest.mark.slow
def test_a_broken_kernel_source_is_noticed_with_a_warm_cache(tmp_path):
    """linear.py is imported by lazy.py: its change must reach a kernel that is written in lazy.py."""
    import shutil
    from pathlib import Path

    package = tmp_path / "fedbandit"
    shutil.copytree(Path(fb.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        "import fedbandit as fb; print(fb.__file__); print(fb.simulate(fb.FedLinUCB(dim=3, alpha=1.0, beta=0.5), "
        "fb.worlds.uniform(dim=3, n_actions=4, noise=0.1), n_agents=2, n_rounds=200, engine='compiled').regret[-1])"
    )

    def regret() -> str:
        made = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert str(package) in made.stdout, made.stderr
        return made.stdout.splitlines()[-1]

    sound = regret()
    assert regret() == sound
    source = package / "simulation" / "compiled" / "linear.py"
    text = source.read_text()
    assert "pivot = C[i, i] - s\n" in text
    source.write_text(text.replace("pivot = C[i, i] - s\n", "pivot = C[i, i] + s\n"))
    assert regret() != sound
