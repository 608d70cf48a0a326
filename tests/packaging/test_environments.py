"""The wheel in an empty environment, extra by extra: what it promises works, and what is missing is named."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

import fedbandit
from tests.live import running_server
from tests.packaging.conftest import Built, Environment, make_environment
from tests.postgres import database, postgres

__all__ = ["database", "postgres"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # downloads, and the machine may be busy

LIBRARY = """
import sys, numpy as np, fedbandit as fb
rule = fb.FedLinUCB(dim=2, alpha=0.5, beta=0.5)
server, agent = rule.server(), rule.agent("a")
for n in range(50):
    upload = agent.observe(agent.choose(np.eye(2)), float(n % 2))
    if upload:
        agent.adopt(server.receive(upload))
assert fb.load(agent.to_bytes()).model_version == agent.model_version > 0
print(agent.model_version)
"""
LIVE = """
import sys, numpy as np, fedbandit as fb
with fb.connect(sys.argv[1], model="news", token=sys.argv[2], state_dir="agent-state") as agent:
    for n in range(20):
        agent.observe(agent.choose(np.eye(3)), 1.0)
    agent.flush()
print("sent")
"""
CONSUMER = """
import numpy as np
import fedbandit as fb

def play(agent: fb.LiveAgent) -> float:
    decision: fb.Decision = agent.choose(np.eye(3))
    agent.observe(decision, 1.0)
    return float(agent.predict(np.eye(3))[0])

with fb.connect("https://bandit.example", model="news", token="t") as live:
    reveal_type(live)
    print(play(live))
rule = fb.FedLinUCB(dim=3, alpha=1.0, beta=0.5)
upload = rule.agent("a").observe([1.0, 0.0, 0.0], 1.0)
if upload is not None:
    rule.server().receive(upload)
"""


def says(environment: Environment, *command: str) -> str:
    """The one line of a command that cannot run here."""
    done = environment.run("fedbandit", *command, status=None)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    return done.stderr


@pytest.fixture(scope="module")
def base(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return make_environment(tmp_path_factory.mktemp("env") / "base", built.wheel)


def test_the_base_install_brings_three_packages_and_is_a_live_agent(base: Environment, tmp_path: Path) -> None:
    listed = json.loads(base.run("python", "-m", "pip", "list", "--format", "json").stdout)
    names = {entry["name"] for entry in listed} - {"pip", "setuptools"}
    assert names == {"fedbandit", "numpy", "msgspec", "urllib3"}
    assert int(base.python(LIBRARY)) > 0
    with running_server(tmp_path) as server:
        server.add_model("news", dim=3)
        assert base.python(LIVE, server.url, server.add_agent("news", "a")) == "sent\n"
        assert server.show("news")["n_obs"] == 20
    assert base.run("fedbandit", "--version").stdout == f"fedbandit {fedbandit.__version__}\n"
    assert json.loads(base.run("fedbandit", "doctor", "--json").stdout)["healthy"]
    assert "--model" in base.run("python", "-m", "fedbandit", "agent", "--help").stdout
    assert "fedbandit[cli]" in says(base, "serve")


def test_a_consumer_passes_strict_type_checking(base: Environment, tmp_path: Path) -> None:
    (tmp_path / "consumer.py").write_text(CONSUMER)
    options = ["--strict", "--python-executable", str(base.folder / "bin" / "python")]
    command = [sys.executable, "-m", "mypy", *options, "consumer.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout
    assert 'Revealed type is "fedbandit.sdk.agent.LiveAgent"' in done.stdout
    (tmp_path / "consumer.py").write_text(CONSUMER.replace("dim=3", 'dim="three"'))
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 1 and 'incompatible type "str"' in done.stdout, "types of ours are seen"


def test_the_commands_name_the_extra_that_they_lack(built: Built, tmp_path: Path) -> None:
    cli = make_environment(tmp_path / "cli", built.wheel, "cli")
    assert cli.run("fedbandit", "--version").stdout == f"fedbandit {fedbandit.__version__}\n"
    assert "fedbandit[server]" in says(cli, "serve")
    assert "fedbandit[lab]" in says(cli, "study", "confidence")
    (tmp_path / "log.csv").write_text("agent,reward,x\na,1,1\n")
    assert "fedbandit[lab]" in says(cli, "advise", str(tmp_path / "log.csv"))
    says(cli, "demo")
    assert (
        "fedlinucb"
        in cli.run("fedbandit", "simulate", "--agents", "2", "--rounds", "50", "--seeds", "1").stdout.lower()
    )
    found = json.loads(cli.run("fedbandit", "doctor", "--json").stdout)["findings"]
    states = {entry["name"]: (entry["state"], entry["advice"]) for entry in found if entry["topic"] == "packages"}
    assert states["base"][0] == states["cli"][0] == "ok"
    assert states["server"] == ("missing", "install fedbandit[server] (in a checkout: pip install '.[server]')")


def serving(environment: Environment, folder: Path, *options: str) -> Iterator[str]:
    """The address of a server that runs in the environment, not in ours."""
    command = [str(environment.folder / "bin" / "fedbandit"), "serve", "--port", "0", *options]
    variables = {**os.environ, "FEDBANDIT_ADMIN_TOKEN": "admin-token-of-the-tests"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True, env=variables)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("fedbandit serves on "), (folder / "log").read_text()[-2000:]
        yield line.split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize("extras", ["server", "server,postgres"])
def test_a_server_serves_its_dashboard_and_an_agent(
    built: Built, base: Environment, extras: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    environment = make_environment(tmp_path / "env", built.wheel, extras)
    if "postgres" in extras:
        where = ("--database", request.getfixturevalue("database"))
    else:
        assert "fedbandit[server,postgres]" in says(environment, "serve", "--database", "postgresql://localhost/x")
        where = ("--data", str(tmp_path / "data"))
    headers = {"Authorization": "Bearer admin-token-of-the-tests"}
    for url in serving(environment, tmp_path, *where):
        body = {"name": "news", "dim": 3, "beta": 0.5}
        assert urllib3.request("POST", f"{url}/v1/models", json=body, headers=headers).status == 201
        added = urllib3.request("POST", f"{url}/v1/models/news/agents", json={"name": "a"}, headers=headers).json()
        shutil.rmtree(base.folder / "agent-state", ignore_errors=True)
        assert base.python(LIVE, url, added["token"]) == "sent\n"
        assert urllib3.request("GET", f"{url}/v1/models/news", headers=headers).json()["n_obs"] == 20
        page = urllib3.request("GET", f"{url}/login")
        style = re.search(r"/static/[^\"]+\.css", page.data.decode())
        assert page.status == 200 and style is not None
        assert urllib3.request("GET", url + style[0]).status == 200


def test_the_laboratory_simulates_compiled_and_lists_its_studies(built: Built, tmp_path: Path) -> None:
    lab = make_environment(tmp_path / "env", built.wheel, "lab")
    program = """
import fedbandit as fb
rule, world = fb.FedLinUCB(dim=3, alpha=1.0, beta=0.5), fb.worlds.uniform(dim=3, n_actions=5)
print(fb.simulate(rule, world, n_agents=3, n_rounds=200, seed=0, engine="compiled").n_messages)
"""
    assert int(lab.run("python", "-c", program).stdout) > 0
    assert "confidence" in lab.run("fedbandit", "study", "--list").stdout


@pytest.mark.parametrize(
    ("extra", "program"),
    [
        ("data", "import fedbandit as fb; print(fb.worlds.real('digits').dim)"),
        ("ray", "import ray; print(len(ray.__version__))"),
    ],
)
def test_data_and_ray_arrive(built: Built, tmp_path: Path, extra: str, program: str) -> None:
    environment = make_environment(tmp_path / "env", built.wheel, extra)
    assert int(environment.run("python", "-c", program).stdout) > 0


def pythons() -> dict[str, str]:
    """Other interpreters of this machine that run, by version."""
    found = {}
    for version in ("3.12", "3.13", "3.14"):
        places = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
        for place in filter(None, places):
            ask = [str(place), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
            done = subprocess.run(ask, capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                found[version] = str(place)
    return found


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_other_versions_of_python(built: Built, tmp_path: Path, version: str) -> None:
    place = pythons().get(version)
    if place is None:
        pytest.skip(f"PYTHON {version} IS NOT TESTED: this machine has none")
    environment = make_environment(tmp_path / "env", built.wheel, "server", place)
    assert int(environment.python(LIBRARY)) > 0
    with running_server(tmp_path) as server:
        server.add_model("news", dim=3)
        assert environment.python(LIVE, server.url, server.add_agent("news", "a")) == "sent\n"
    for url in serving(environment, tmp_path, "--data", str(tmp_path / "other")):
        began = time.monotonic()
        assert urllib3.request("GET", f"{url}/readyz").json() == {"status": "ready"}
        assert time.monotonic() - began < 5
