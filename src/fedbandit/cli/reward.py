"""`fedbandit reward`: report rewards of decisions that were made elsewhere."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fedbandit.cli.admin_client import DEFAULT_URL, AdminClient, AsJson, CaCert, Url, print_json
from fedbandit.errors import InvalidParameter

AT_ONCE = 1000  # rewards in one request
Token = Annotated[str, typer.Option("--token", envvar="FEDBANDIT_TOKEN", help="Token of a reporter or administrator.")]


class WithNegativeNumbers(TyperCommand):
    """A command whose arguments may be negative numbers, without a `--` before them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; a number with a space before it is not taken for an option, and is the same number."""
        return super().parse_args(ctx, [f" {arg}" if _is_negative(arg) else arg for arg in args])


def _is_negative(text: str) -> bool:
    try:
        return text.startswith("-") and math.isfinite(float(text))
    except ValueError:
        return False


def reward(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    decision: Annotated[str, typer.Argument(help="Id or token of the decision.")] = "",
    value: Annotated[float | None, typer.Argument(metavar="REWARD", help="Its reward.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Many: lines of 'decision,reward', or of JSON with these keys; '-' for standard input."),
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Report the reward of a decision, or of many in a file; what was reported before is recognised."""
    caller = AdminClient(url, token, ca_cert)
    if (file is None) == (not decision or value is None):
        raise InvalidParameter("expected a decision and its reward, or --file: one of the two")
    if file is None:
        found = caller.call("POST", "models", model, "rewards", body={"decision": decision, "reward": value})
        if as_json:
            print_json(found)
        else:
            typer.echo(found["status"])
        return
    results = [result for batch in _batches(file) for result in _send(caller, model, batch)]
    if as_json:
        print_json(results)
        return
    counts: dict[str, int] = {}
    for result in results:
        counts[result["status"]] = counts.get(result["status"], 0) + 1
        if "message" in result:
            typer.echo(f"{result['decision'][:40]}: {result['message']}", err=True)
    typer.echo(", ".join(f"{n} {status}" for status, n in sorted(counts.items())) or "nothing to report")
    if counts.get("refused"):
        raise typer.Exit(1)


def _send(caller: AdminClient, model: str, batch: list[dict[str, object]]) -> list[dict[str, str]]:
    results: list[dict[str, str]] = caller.call("POST", "models", model, "rewards", body={"rewards": batch})["results"]
    return results


def _batches(file: Path) -> Iterator[list[dict[str, object]]]:
    batch = []
    for item in _items(file):
        batch.append(item)
        if len(batch) == AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _items(file: Path) -> Iterator[dict[str, object]]:
    try:
        lines = sys.stdin.read().splitlines() if str(file) == "-" else file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{file} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.replace(" ", "") == "decision,reward"):
            continue
        try:
            if line.lstrip().startswith("{"):
                found = json.loads(line)
                yield {"decision": str(found["decision"]), "reward": float(found["reward"])}
            else:
                name, value = next(csv.reader([line]))
                yield {"decision": name.strip(), "reward": float(value)}
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidParameter(
                f"{file}, line {number}: expected decision,reward or JSON with these keys: {error}"
            ) from None
