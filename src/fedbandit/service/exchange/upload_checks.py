"""The numbers of an upload, checked against the model that it is for."""

from __future__ import annotations

from fedbandit.core.arrays import Vector
from fedbandit.core.block_packing import with_columns
from fedbandit.core.plausibility import information, require_plausible, require_plausible_blocks
from fedbandit.errors import DimensionMismatch
from fedbandit.wire import codec
from fedbandit.wire.settings import ModelSettings


def plausible_numbers(request: codec.SyncRequest, settings: ModelSettings) -> tuple[Vector, float]:
    """The packed numbers of an upload, and the most that log det can have grown by them.

    `DimensionMismatch` if it is for another model, `NotFinite` or `ImplausibleUpload` if no data could give them. To a
    model with blocks an upload brings those that it touched. It may know fewer blocks than the model has: blocks are
    added at the end (`models widen`), so what an agent gathered before still says the same. So are features.
    """
    if not isinstance(request, codec.BlockSyncRequest):
        if request.dim not in (settings.dim, *settings.earlier_dims) or settings.blocks > 1:
            raise _mismatch(settings, f"{request.dim}")
        numbers = codec.numbers_of(request)
        require_plausible(numbers, request.dim, settings.bounds)
        most = information(numbers, request.dim, settings.lam)
        return numbers if request.dim == settings.dim else with_columns(numbers, settings.dim), most
    p = settings.dim // settings.blocks
    if settings.blocks == 1 or request.dim != p * request.blocks or request.blocks > settings.blocks:
        raise _mismatch(settings, f"{request.dim} in {request.blocks} blocks")
    numbers, n_touched = codec.numbers_of(request), len(request.touched) // 4
    require_plausible_blocks(numbers, p, n_touched, settings.bounds)
    most = information(numbers, p * n_touched, settings.lam, max(n_touched, 1))
    return codec.expanded_numbers(request, settings.blocks), most


def _mismatch(settings: ModelSettings, found: str) -> DimensionMismatch:
    blocks = f" in {settings.blocks} blocks" if settings.blocks > 1 else ""
    return DimensionMismatch(f"expected an upload with {settings.dim} features{blocks}, got {found}")
