"""A warning for rows without names in a model with columns for each arm."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from fedbandit.errors import UnnamedArms


def warn_of_unnamed_arms(model: str, arms: Iterable[str]) -> None:
    """Warn whoever called the live agent, four calls further up."""
    warnings.warn(
        f"model {model} has columns for each arm, in the order {', '.join(arms)}; rows without names cannot be checked "
        "against it: make them by fb.arm_features(context, arms, features=agent.features)",
        UnnamedArms,
        stacklevel=5,
    )
