"""Options of `models create` and `models set`, and the values of a request that they give."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedbandit.core import drift as drifts
from fedbandit.core.radius import KINDS

Alpha = Annotated[float | None, typer.Option(help="Determinant growth that triggers an exchange.")]
Beta = Annotated[float | None, typer.Option(help="Confidence radius β as a number.")]
RadiusKind = Annotated[str | None, typer.Option(help=f"β by its kind: {', '.join(KINDS)}.")]
NAgents = Annotated[int | None, typer.Option(help="Radius: agents M, or a bound on them.")]
NRounds = Annotated[int | None, typer.Option(help="Radius: rounds T over all agents.")]
NoiseScale = Annotated[float | None, typer.Option(help="Radius: noise scale R.")]
ThetaBound = Annotated[float | None, typer.Option(help="Radius: S ≥ ‖θ*‖.")]
Delta = Annotated[float | None, typer.Option(help="Radius: failure probability δ.")]
ActionBound = Annotated[
    str | None, typer.Option(help="L ≥ ‖x‖; uploads that exceed it are refused. 'none': 1e9, the default.")
]
RewardBound = Annotated[
    str | None, typer.Option(help="Largest |r|; uploads that exceed it are refused. 'none': 1e9, the default.")
]
MaxRate = Annotated[
    str | None,
    typer.Option(
        help="Observations per second of one agent, on average since it was added. 'none': 10000, the default."
    ),
]
MaxShare = Annotated[
    str | None,
    typer.Option(
        help="Largest share of the information that one agent may have, 0 to 1. 'none': no limit, the default."
    ),
]
Policy = Annotated[str | None, typer.Option(help="How agents decide: 'ucb', 'inverse-gap' or 'thompson'.")]
Explore = Annotated[float | None, typer.Option(help="Share of decisions that are uniformly random, 0 to 1.")]
Gamma = Annotated[str | None, typer.Option(help="Sharpness of 'inverse-gap': a number, or 'auto' for √(n K/d).")]
PropensitySamples = Annotated[
    int | None, typer.Option(help="Draws for the probability of a 'thompson' decision; 0: it tells none.")
]
Drift = Annotated[
    str | None,
    typer.Option(help="A world that changes: restart:R with the noise scale, discount:H with the horizon, or 'none'."),
]
MaxSilenceRounds = Annotated[
    str | None, typer.Option(help="Most own rounds of an agent without an exchange. 'none': no limit, the default.")
]
MaxSilenceS = Annotated[
    str | None, typer.Option(help="Most seconds that observations stay unsent. 'none': no limit, the default.")
]
Notes = Annotated[str | None, typer.Option(help="Words about the model, for people.")]


def drift_of(text: str | None) -> dict[str, Any]:
    """`drift` of a request, if it was given."""
    if text is None:
        return {}
    return {"drift": None if text == "none" else drifts.to_dict(drifts.read(text))}


def limits_of(**given: str | None) -> dict[str, float | None]:
    """The limits that were given, each a number or None for the text 'none'."""
    return {name: _limit(name, text) for name, text in given.items() if text is not None}


def _limit(name: str, text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        option = "--" + name.replace("_", "-")
        raise typer.BadParameter(f"expected {option} as a number or 'none', got {text!r}") from None


def radius_values(
    kind: str | None, beta: float | None, action_bound: float | None, **assumed: float | None
) -> dict[str, Any]:
    """`radius` or `beta` of a request; empty if neither was given."""
    numbers = {key: value for key, value in assumed.items() if value is not None}
    if kind is not None:
        more = {"beta": beta, "action_bound": action_bound if kind == "paper" else None}
        return {"radius": {"kind": kind, **numbers, **{key: value for key, value in more.items() if value is not None}}}
    if numbers:
        options = ", ".join("--" + key.replace("_", "-") for key in numbers)
        raise typer.BadParameter(f"{options}: only used with --radius; give one, one of {', '.join(KINDS)}")
    return {} if beta is None else {"beta": beta}


def names_in(text: str | None) -> list[str] | None:
    """`a, b` as ["a", "b"]."""
    return None if text is None else [part.strip() for part in text.split(",")]
