"""The parts of a model in the form that it has: dense, or by blocks of columns (one per arm)."""

from __future__ import annotations

from typing import Any

from fedbandit.core.block_growth import BlockEagerEstimate, BlockGrowthTracker
from fedbandit.core.block_ridge import BlockRidgeModel
from fedbandit.core.block_statistics import BlockRunningStats
from fedbandit.core.eager import EagerEstimate
from fedbandit.core.growth import GrowthTracker
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import RunningStats, SufficientStats


def running_stats(dim: int, blocks: int = 1) -> RunningStats:
    """An empty buffer."""
    return RunningStats(dim) if blocks == 1 else BlockRunningStats(dim, blocks)


def ridge_model(stats: SufficientStats) -> RidgeModel:
    """The ridge model of these statistics."""
    return BlockRidgeModel(stats) if stats.blocks > 1 else RidgeModel(stats)


def growth_tracker(model: RidgeModel) -> GrowthTracker:
    """A tracker that starts at this model."""
    if isinstance(model, BlockRidgeModel):
        return BlockGrowthTracker(model)
    return GrowthTracker(model.inverse, model.log_det)


def saved_tracker(state: dict[str, Any], model: RidgeModel) -> GrowthTracker:
    """The tracker of a saved state, whose base is this model."""
    if isinstance(model, BlockRidgeModel):
        return BlockGrowthTracker.of_state(state, model)
    return GrowthTracker.from_state(state, model.dim)


def eager_estimate(stats: SufficientStats) -> EagerEstimate:
    """The eager estimate that starts at these statistics."""
    return BlockEagerEstimate(stats) if stats.blocks > 1 else EagerEstimate(stats)


def saved_estimate(stats: SufficientStats, tracker: dict[str, Any]) -> EagerEstimate:
    """The eager estimate of saved statistics and the state of its tracker."""
    estimate = eager_estimate(stats)
    if isinstance(estimate, BlockEagerEstimate):
        estimate.restore_tracker(tracker)
        return estimate
    estimate.tracker = GrowthTracker.from_state(tracker, stats.dim)
    estimate.forget_theta()
    return estimate
