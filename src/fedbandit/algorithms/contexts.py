"""Contexts of models with disjoint arms: read and scored in every block, without a row per arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.algorithms.scoring import DecisionBasis, check_number_of
from fedbandit.core.arrays import LARGEST, Vector, as_float_array, finite, is_listing
from fedbandit.core.block_ridge import BlockRidgeModel
from fedbandit.core.block_rows import compact_row, joined
from fedbandit.core.block_scores import BlockScores
from fedbandit.core.decision_sets import first_best, top_indices
from fedbandit.core.features import values_by_name
from fedbandit.errors import DimensionMismatch, EmptyDecisionSet, FeatureMismatch, InvalidInput

if TYPE_CHECKING:
    from fedbandit.algorithms.base import BaseAgent

Context = ArrayLike | Mapping[str, float]
Arms = Sequence[str] | Sequence[int]


def read_context(agent: BaseAgent, context: Any, bias: bool) -> Vector:
    """The p numbers of a context: `bias` adds a constant 1 behind p − 1 of them; a mapping is read by name."""
    if agent.blocks == 1:
        raise InvalidInput("choose_context needs a model with one block per arm (blocks=K); choose(X) takes rows")
    p = agent.dim // agent.blocks
    if isinstance(context, Mapping):
        return values_by_name(context, _context_names(agent, p))
    values = as_float_array(context, "context")
    expected = p - 1 if bias else p
    if values.shape != (expected,):
        hint = "a constant 1 joins it; bias=False takes all of them" if bias else "bias=True adds a constant 1"
        raise DimensionMismatch(f"expected a context of shape ({expected},), got shape {values.shape}; {hint}")
    row = np.ones(p)
    row[:expected] = values
    return finite(row, "context")


def read_arms(agent: BaseAgent, arms: Any) -> NDArray[np.intp] | None:
    """The blocks of the arms on offer, by name or number, in their order; None for all."""
    if arms is None:
        return None
    if not is_listing(arms):
        raise InvalidInput(f"expected arms as a list of names or numbers, got {arms!r}")
    listed = list(arms)
    if not listed:
        raise EmptyDecisionSet("expected at least one arm, got none")
    blocks = [_block_of(agent, arm) for arm in listed]
    if len(set(blocks)) != len(blocks):
        raise InvalidInput("expected every arm at most once")
    return np.array(blocks, dtype=np.intp)


def best_blocks(
    basis: DecisionBasis, context: Vector, blocks: NDArray[np.intp] | None, k: int
) -> tuple[list[tuple[int, int]], int]:
    """The k best of these blocks (of all, if None), best first: each as its place in the list and its number."""
    estimate, beta, version = basis
    assert isinstance(estimate, BlockRidgeModel | BlockScores)
    with np.errstate(over="ignore", invalid="ignore"):
        upper = estimate.upper_of(context, beta)
    if blocks is not None:
        upper = upper[blocks]
    check_number_of(k, len(upper))
    chosen = [first_best(upper)] if k == 1 else top_indices(upper, k)
    if not abs(upper[chosen[0]]) <= LARGEST:
        finite(upper, "scores of this context")
    return [(index, index if blocks is None else int(blocks[index])) for index in chosen], version


def compact(agent: BaseAgent, x: Vector, block: int | None) -> Vector:
    """The compact row of a decision: of the context in its block, or of a full row."""
    if block is None:
        if x.shape != (agent.dim,):
            raise DimensionMismatch(f"expected the decision's row of shape ({agent.dim},), got shape {x.shape}")
        return compact_row(finite(x, "the decision's row"), agent.blocks)
    p = agent.dim // agent.blocks
    if agent.blocks == 1 or x.shape != (p,) or not 0 <= block < agent.blocks:
        raise DimensionMismatch(
            f"expected a decision in one of {agent.blocks} blocks of {p} columns, got block {block} and shape {x.shape}"
        )
    return joined(block, finite(x, "the decision's context"))


def _block_of(agent: BaseAgent, arm: Any) -> int:
    if isinstance(arm, str):
        if agent.arms is None:
            raise FeatureMismatch(f"the model's arms have no names, got {arm!r}; use the numbers of their blocks")
        try:
            return agent._arm_blocks[arm]
        except KeyError:
            some = ", ".join(agent.arms[:10]) + (", …" if len(agent.arms) > 10 else "")
            raise FeatureMismatch(f"expected arms among {some}, got {arm!r}") from None
    try:
        block = int(arm)
        is_block = block == arm and 0 <= block < agent.blocks and not isinstance(arm, bool)
    except (TypeError, ValueError):
        block, is_block = 0, False
    if not is_block:
        raise FeatureMismatch(f"expected arms as names or numbers from 0 to {agent.blocks - 1}, got {arm!r}")
    return block


def _context_names(agent: BaseAgent, p: int) -> list[str]:
    """Names of the columns of a block, from the first arm's."""
    names = [name.partition("@")[0] for name in (agent.features or ())[:p]]
    if not names or agent.arms is None:
        raise FeatureMismatch("the model's columns have no names (name@arm); pass the context as an array")
    return names
