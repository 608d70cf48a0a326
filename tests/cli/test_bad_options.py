"""A hostile value for every option and argument of every command: a sentence and status 1 or 2, never a traceback."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.cli.sweep import (
    A_FEW_NUMBERS,
    A_FEW_TEXTS,
    NO_NUMBER,
    VALUES,
    Base,
    Ending,
    Parameter,
    commands,
    invoke,
    parameters_of,
)
from tests.live import LiveServer, running_server

COMMANDS = commands()
# Values that are as good as any, and keep the command busy for hours.
ENDLESS = {("simulate", "--seeds", "1" + "0" * 30)}
# Any finite number is a reward.
MAY_BE_NEGATIVE = {("reward", "VALUE")}
LOG = "\n".join(
    ["agent,reward,x,y", *(f"a{i % 3},{i * 7 % 5 / 5},{i * 3 % 11 / 11},{i * 5 % 7 / 7}" for i in range(60))]
)
DECISIONS = "\n".join(
    f'{{"id": "i-{i}", "time": {i}, "agent": "a", "index": {i % 2}, "x": [{i % 2}, 1], "rows": [[0, 1], [1, 1]], '
    f'"propensity": 0.5}}\n{{"id": "i-{i}", "time": {i}, "reward": {i * 7 % 5}}}'
    for i in range(40)
)


class Desk:
    """A directory with a few files, a server with a model and an agent, and words for every command."""

    def __init__(self, folder: Path, server: LiveServer, busy_port: int) -> None:
        self.folder, self.server = folder, server
        self.numbers = itertools.count()
        server.add_model("news", dim=3)
        self.agent_token = server.add_agent("news", "a")
        call: list[Any] = ["--url", server.url, "--token", server.admin_token]
        live = ["--url", server.url, "--token", self.agent_token, "--model", "news"]
        self.bases = {
            "simulate": Base(["--rounds", "20", "--agents", "2", "--engine", "reference", "--json"]),
            "plan": Base(["--agents", "5", "--dim", "3", "--rounds", "1000", "--no-simulate", "--json"]),
            "study": Base(["--out", "file.txt/x"], ["bias"]),  # ends where it would begin to work
            "evaluate": Base(["--policy", "uniform", "--json"], ["decisions.jsonl"]),
            "advise": Base(["--seeds", "2", "--rounds", "20", "--out", "advice.html", "--json"], ["log.csv"]),
            "demo": Base(["--data", "folder"]),  # not empty: ends where it would begin to work
            "serve": Base(["--port", str(busy_port)]),  # ends when it would listen
            "agent": Base([*live, "--world", "sphere", "--rounds", "3"]),
            "reward": Base(["--json", *call], ["news", "unknown", "1"]),
            "copy-store": Base(["--data", str(server.data_dir), "--to", "postgresql://127.0.0.1:1/none"]),  # refused
            "backup": Base(["--data", str(server.data_dir), "--out", self.new("backup")]),
            "restore": Base(["--from", "backup", "--data", self.new("data")]),
            "doctor": Base(["--json", *call]),
            "dashboard-link": Base(call),
            "models create": Base(["--dim", "2", *call], [self.new("model")]),
            "models list": Base(call),
            "models show": Base(call, ["news"]),
            "models export": Base(["--output", "model.safetensors", *call], ["news"]),
            "models delete": Base(["--yes", *call], ["unknown"]),
            "models set": Base(["--alpha", "1", "--json", *call], ["news"]),
            "models gain": Base(["--json", *call], ["news"]),
            "models import": Base(["--name", self.new("model"), *call], ["exported.safetensors"]),
            "models copy": Base(call, ["news", self.new("model")]),
            "models restart": Base(["--yes", *call], ["unknown"]),
            "models widen": Base(["--arms", "salt", *call], ["news"]),
            "agents add": Base(call, ["news", self.new("agent")]),
            "agents list": Base(call, ["news"]),
            "agents show": Base(call, ["news", "a"]),
            "agents revoke": Base(call, ["news", "unknown"]),
            "agents forget": Base(["--yes", *call], ["news", "unknown"]),
            "agents quarantine": Base(call, ["news", "unknown"]),
            "agents release": Base(call, ["news", "unknown"]),
            "agents retire": Base(call, ["news", "unknown"]),
            "agents unretire": Base(call, ["news", "unknown"]),
            "agents prune": Base(["--json", *call], ["news"]),
            "enrol create": Base(call, ["news"]),
            "enrol list": Base(call, ["news"]),
            "enrol revoke": Base(call, ["news", "unknown"]),
            "tokens add": Base(call, [self.new("token")]),
            "tokens list": Base(call),
            "tokens revoke": Base(call, ["unknown"]),
        }
        # Where the words above would let the command begin to work, others that end it at its last step.
        nowhere = ["--host", "192.0.2.1", "--insecure"]  # an address that no machine has
        self.instead = {
            ("serve", "--port"): Base(nowhere),
            ("serve", "--host"): Base(["--port", str(busy_port), "--insecure"]),
            ("demo", "--data"): Base(["--agents", "1"]),
            ("models widen", "--add-features"): Base(call, ["news"]),
            ("study", "--out"): Base(["--from", "folder"], ["bias"]),
        }

    def new(self, what: str) -> Any:
        return lambda: f"{what}-{next(self.numbers)}"

    def base(self, command: str, parameter: Parameter) -> Base:
        return self.instead.get((command, parameter.name), self.bases[command])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "folder").mkdir()
    (folder / "folder" / "file.txt").write_text("x")
    (folder / "file.txt").write_text("x")
    (folder / "log.csv").write_text(LOG)
    (folder / "decisions.jsonl").write_text(DECISIONS)
    before = Path.cwd()
    with running_server(folder / "server") as server, socket.create_server(("127.0.0.1", 0)) as busy:
        os.chdir(folder)
        try:
            made = Desk(folder, server, busy.getsockname()[1])
            assert invoke(["backup", "--data", str(server.data_dir), "--out", "backup"]).status == 0
            exported = made.bases["models export"].options[2:]
            assert invoke(["models", "export", "news", "--output", "exported.safetensors", *exported]).status == 0
            yield made
        finally:
            os.chdir(before)


def a_few(parameter: Parameter) -> list[str]:
    return A_FEW_NUMBERS if parameter.is_number else A_FEW_TEXTS


def all_of_them(parameter: Parameter) -> list[str]:
    return VALUES


def swept(
    desk: Desk, command: str, values: Callable[[Parameter], list[str]], *, without: tuple[str, ...] = ()
) -> dict[str, str]:
    """What is wrong with how the command ends, by parameter and value."""
    found = {}
    usual_of = cache(lambda base: invoke(base.words(command)))
    for parameter in parameters_of(COMMANDS[command]):
        if parameter.name in without:
            continue
        base = desk.base(command, parameter)
        usual = usual_of(base)
        for value in values(parameter):
            if (command, parameter.name, value) in ENDLESS:
                continue
            ending = invoke(base.words(command, parameter, value))
            may_pass = value == "-1" and (command, parameter.name) in MAY_BE_NEGATIVE
            problem = ending.problem or ("" if may_pass else passed_over(parameter, value, ending, usual))
            if problem:
                found[f"{parameter.name} {value!r}"] = problem
    return found


def passed_over(parameter: Parameter, value: str, ending: Ending, usual: Ending) -> str:
    """A complaint if no number was given for one, and nothing was said about it."""
    if not parameter.is_number or value not in NO_NUMBER:
        return ""
    if ending.status == 0:
        return "was accepted"
    return "was passed over" if ending.sentence == usual.sentence else ""


def test_every_command_is_swept(desk: Desk) -> None:
    assert set(desk.bases) == set(COMMANDS)
    assert sum(len(parameters_of(command)) for command in COMMANDS.values()) > 150


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_values_end_in_a_sentence(command: str, desk: Desk) -> None:
    # Commands that manage a server have these three in common, and `models show` is one of them.
    without = ("--url", "--token", "--ca-cert") if " " in command and command != "models show" else ()
    # Most text is the name of some column, and then `advise` simulates for a second.
    if command == "advise":
        without = ("--action", "--decision", "--propensity", "--ignore")
    assert swept(desk, command, a_few, without=without) == {}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_more_bad_values_end_in_a_sentence(command: str, desk: Desk) -> None:
    assert swept(desk, command, all_of_them) == {}


NEEDS_SERVER = [name for name in COMMANDS if name == "agent" or " " in name]


@pytest.mark.parametrize("command", NEEDS_SERVER)
def test_without_a_server_commands_say_so(command: str, desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    base = desk.bases[command]
    ending = invoke(Base([*base.options, "--url", address], base.arguments).words(command))
    assert ending.problem == ""
    assert ending.status == 2
    assert "not_reachable" in ending.sentence and address in ending.sentence and "refused" in ending.sentence


@pytest.mark.parametrize("command", [name for name in NEEDS_SERVER if name.startswith(("models", "agents"))])
def test_an_unknown_model_is_named(command: str, desk: Desk) -> None:
    base = desk.bases[command]
    if command in ("models create", "models list", "models import"):
        pytest.skip("it takes no model that exists")
    ending = invoke(Base(base.options, ["nobody-made-this", *base.arguments[1:]]).words(command))
    assert (ending.status, ending.problem) == (2, "")
    assert ending.sentence == "fedbandit: unknown_model: there is no model 'nobody-made-this'"


@pytest.mark.parametrize("command", [name for name in NEEDS_SERVER if name.startswith("agents ") and "add" not in name])
def test_an_unknown_agent_is_named(command: str, desk: Desk) -> None:
    base = desk.bases[command]
    if command in ("agents list", "agents prune"):
        pytest.skip("it takes no agent")
    ending = invoke(Base(base.options, ["news", "nobody"]).words(command))
    assert (ending.status, ending.problem) == (2, "")
    assert "unknown_agent" in ending.sentence and "'nobody'" in ending.sentence


def test_names_never_become_other_addresses(desk: Desk) -> None:
    """`agents show news ..` would be `models show news`, and `tokens revoke .` all tokens."""
    for words in (["agents", "show", "news", ".."], ["models", "show", "."], ["models", "show", "a/b"]):
        ending = invoke([*words, *desk.bases["models list"].words("")[:-1]])
        assert (ending.status, "expected the name of" in ending.sentence) == (2, True), ending


def test_more_memory_than_there_is(desk: Desk) -> None:
    ending = invoke(["simulate", "--rounds", "5", "--agents", "2", "--dim", "100000000", "--engine", "reference"])
    assert (ending.status, ending.problem) == (1, "")
    assert "out_of_memory" in ending.sentence
