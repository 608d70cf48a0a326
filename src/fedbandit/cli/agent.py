"""`fedbandit agent`: one live agent, driven by a simulated world or by JSON lines on standard input."""

from __future__ import annotations

import inspect
import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

try:
    import typer
except ImportError:  # the base install
    from fedbandit.cli import plain as typer  # type: ignore[no-redef]

import fedbandit as fb
from fedbandit.core.arrays import whole_at_least
from fedbandit.errors import DimensionMismatch, InvalidParameter
from fedbandit.simulation.participation import Even
from fedbandit.simulation.runner import rounds_of, value_of
from fedbandit.simulation.worlds import WORLDS, reseed


def agent(
    model: Annotated[str, typer.Option(help="Name of the model.")],
    url: Annotated[str, typer.Option(envvar="FEDBANDIT_URL", help="Address of the server.")],
    token: Annotated[str, typer.Option(envvar="FEDBANDIT_TOKEN", help="The agent's token.", show_default=False)] = "",
    enrol: Annotated[
        str, typer.Option(envvar="FEDBANDIT_ENROL", help="An enrolment instead of a token, with --state-dir.")
    ] = "",
    reenrol: Annotated[
        bool, typer.Option("--reenrol", help="Begin anew if the state directory is a copy, or its agent was retired.")
    ] = False,
    name: Annotated[str | None, typer.Option("--agent", help="The agent's name, checked against the token.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Directory of the journal, which survives a crash.")] = None,
    durability: Annotated[
        str, typer.Option(help="'fast' survives a crash of the process, 'strict' also a power failure.")
    ] = "fast",
    sync: Annotated[str, typer.Option(help="'background', or 'inline' to exchange before each reply.")] = "background",
    refresh_after: Annotated[
        float | None, typer.Option(help="Fetch the model after this many seconds without an exchange.")
    ] = None,
    min_upload: Annotated[int, typer.Option(help="Minimum number of observations in an upload.")] = 1,
    keep_mb: Annotated[
        float,
        typer.Option(help="Megabytes of acknowledged uploads to keep, in case the server is restored from a backup."),
    ] = 4.0,
    rejoin: Annotated[
        bool,
        typer.Option(
            "--rejoin", help="Continue as a new incarnation if the server was restored to a state that is too old."
        ),
    ] = False,
    ca: Annotated[Path | None, typer.Option(help="Certificates to trust, PEM.")] = None,
    cert: Annotated[Path | None, typer.Option(help="The agent's own certificate, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    world: Annotated[
        str | None,
        typer.Option(help=f"Run in a simulated world instead of reading lines: {', '.join(WORLDS.own_names)}."),
    ] = None,
    rounds: Annotated[int, typer.Option(help="With --world: number of rounds.")] = 1000,
    seed: Annotated[int, typer.Option(help="With --world: seed of this agent's decision sets and noise.")] = 0,
    world_seed: Annotated[
        int, typer.Option(help="With --world: seed of θ* and of everything else that all agents share.")
    ] = 0,
    actions: Annotated[int | None, typer.Option(help="With --world: actions in a decision set.")] = None,
    noise: Annotated[float | None, typer.Option(help="With --world: standard deviation of the noise.")] = None,
) -> None:
    """Run one live agent. Without --world it reads JSON lines and writes one line in reply to each (docs/sdk.md)."""
    if not token and not enrol:
        raise InvalidParameter(
            "expected --token (FEDBANDIT_TOKEN) as printed by `fedbandit agents add`, or --enrol (FEDBANDIT_ENROL) "
            "as printed by `fedbandit enrol create`, got neither"
        )
    signal.signal(signal.SIGTERM, _leave)
    with fb.connect(
        url,
        model=model,
        token=token or None,
        enrol=enrol or None,
        reenrol=reenrol,
        agent=name,
        state_dir=state_dir,
        durability=durability,
        sync=sync,
        refresh_after_s=refresh_after,
        min_upload=min_upload,
        keep_mb=keep_mb,
        rejoin=rejoin,
        ca=ca,
        cert=cert,
        key=key,
    ) as live:
        if world is not None:
            numbers: dict[str, Any] = {"n_rounds": rounds, "seed": seed, "world_seed": world_seed}
            print(json.dumps(play(live, world, n_actions=actions, noise=noise, **numbers), indent=1))
            return
        from fedbandit.sdk.jsonl import serve_lines

        try:
            serve_lines(live, sys.stdin, _write)
        except BrokenPipeError:  # the other program has ended and reads no replies
            sys.stderr.close()


def play(
    live: fb.LiveAgent,
    name: str,
    *,
    n_rounds: int,
    seed: int,
    world_seed: int = 0,
    n_actions: int | None = None,
    noise: float | None = None,
) -> dict[str, Any]:
    """Play rounds of a world and return the totals; all observations are merged at the end.

    Agents with the same `world_seed` learn the same θ*, whatever their `seed`.
    """
    n_rounds = whole_at_least(n_rounds, 1, "rounds")
    constructor = WORLDS.find(name)
    given = {"n_actions": n_actions, "noise": noise}
    dim = live.model.dim
    numbers = {key: value for key, value in given.items() if value is not None}
    unknown = numbers.keys() - inspect.signature(constructor).parameters.keys()
    if unknown:
        raise InvalidParameter(f"the {name} world has no {', '.join(sorted(unknown))}")
    place = constructor(dim=dim, **numbers)
    if place.dim != dim:
        raise DimensionMismatch(f"the model has {dim} features, the {name} world {place.dim}")
    stream, blocks = rounds_of(
        place, Even(), n_agents=1, n_rounds=n_rounds, seed=whole_at_least(world_seed, 0, "world_seed")
    )
    reseed(stream, whole_at_least(seed, 0, "seed"))
    reward_sum = regret = 0.0
    t = 0
    for _, block in blocks:
        for i in range(min(len(block), n_rounds - t)):
            t += 1
            actions = block.actions(i)
            decision = live.choose(actions)
            mean, best = value_of(decision.index, decision.x, actions, block, i, stream)
            reward = mean + block.noise_of(i, decision.index)
            live.observe(decision, reward)
            reward_sum += reward
            regret += best - mean
    live.flush()
    status = live.status()
    return {
        "agent": status.agent_id,
        "rounds": n_rounds,
        "mean_reward": reward_sum / n_rounds,
        "regret": regret,
        "exchanges": status.exchanges,
        "bytes_sent": status.bytes_sent,
        "bytes_received": status.bytes_received,
        "model_version": status.model_version,
    }


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM like the end of the input: close the agent with a complete journal."""
    raise SystemExit(0)
