"""A model from an exported file: its sums become the contribution of one agent of a new model."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fedbandit.algorithms.messages import Upload
from fedbandit.cli.warm_start import create_with_history
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import FormatError, InvalidInput, InvalidParameter, MissingExtra
from fedbandit.http_client import AdminClient
from fedbandit.wire.settings import DEFAULT_BOUND, DEFAULT_MAX_RATE, ModelSettings

AGENT = "imported"
DEFAULTS = {"action_bound": DEFAULT_BOUND, "reward_bound": DEFAULT_BOUND, "max_rate": DEFAULT_MAX_RATE}


def read_export(content: bytes) -> tuple[ModelSettings, Upload | None]:
    """The settings in an exported model, and its sums without λI as one upload; None if it has no data."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load
    except ImportError:
        raise MissingExtra("importing needs safetensors: install fedbandit[server]") from None
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], "little")
        about = json.loads(content[8 : 8 + length])["__metadata__"]
        if about["format"] != "fedbandit-model" or about["format_version"] != "1":
            raise FormatError(f"expected a model of format version 1, got {about['format']} {about['format_version']}")
        described = json.loads(about["model"])
        settings = ModelSettings.from_dict({**described, **_unset(described)})
        stats = _stats(tensors, settings)
    except (SafetensorError, KeyError, ValueError, TypeError, InvalidParameter, InvalidInput) as error:
        raise FormatError(f"expected a file that `fedbandit models export` wrote: {error}") from None
    if stats.n_obs == 0:
        return settings, None
    return settings, Upload(AGENT, "import", 1, stats, 0.0)


def _unset(described: dict[str, Any]) -> dict[str, None]:
    """Bounds at their defaults, which the server shows as if somebody had set them."""
    return {name: None for name, value in DEFAULTS.items() if described.get(name) == value}


def _stats(tensors: dict[str, Any], settings: ModelSettings) -> SufficientStats:
    Sigma, b = np.asarray(tensors["Sigma"], dtype=np.float64), np.asarray(tensors["b"], dtype=np.float64)
    prior = SufficientStats.prior(dim=settings.dim, lam=settings.lam, blocks=settings.blocks)
    if Sigma.shape != prior.Sigma.shape or b.shape != prior.b.shape:
        raise FormatError(f"expected sums for {settings.dim} features, got {Sigma.shape} and {b.shape}")
    if not (np.isfinite(Sigma).all() and np.isfinite(b).all()):
        raise FormatError("expected finite sums")
    reward_sum, reward_sq_sum = (float(value) for value in tensors["reward_sums"])
    return SufficientStats(Sigma - prior.Sigma, b, int(tensors["n_obs"][0]), reward_sum, reward_sq_sum)


def create_from(caller: AdminClient, settings: ModelSettings, upload: Upload | None) -> dict[str, Any]:
    """A new model with these settings and sums."""
    later = {"max_share", "earlier_dims"}  # a new model has no agents of an earlier width
    body = {name: value for name, value in settings.to_dict().items() if value is not None and name not in later}
    if upload is None:
        model: dict[str, Any] = caller.call("POST", "models", body=body)
    else:
        model = create_with_history(caller, body, upload)
    if settings.max_share is not None:  # afterwards: the one agent that brings everything has all of it
        model = caller.call("PATCH", "models", settings.name, body={"max_share": settings.max_share})
    return model
