"""The npm package: what it contains, its types, and the code of its README."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.node import CLIENT, needs_node
from tests.live import running_server

NO_TSC = "THE TYPES OF THE JAVASCRIPT CLIENT ARE NOT COMPILED: there is no `tsc` on the PATH; npm install -g typescript"


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no `npm` on the PATH")
def test_the_package_has_the_modules_their_types_and_the_readme() -> None:
    run = subprocess.run(
        ["npm", "pack", "--dry-run", "--json", "--offline"], cwd=CLIENT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr[-2000:]
    packed = {each["path"] for each in json.loads(run.stdout)[0]["files"]}
    modules = {path.name for path in (*CLIENT.glob("*.js"), *CLIENT.glob("*.d.ts"))}
    assert packed == {*modules, "README.md", "package.json"}


@pytest.mark.skipif(shutil.which("tsc") is None, reason=NO_TSC)
def test_the_types_compile_and_refuse_what_they_must() -> None:
    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom,dom.iterable"]
    run = subprocess.run(["tsc", *options, "test/types.ts"], cwd=CLIENT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout[-3000:]


@needs_node
def test_the_code_of_the_readme_runs_from_the_installed_package(tmp_path: Path) -> None:
    blocks = re.findall(r"```js\n(.*?)```", (CLIENT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "fedbandit").symlink_to(CLIENT)
    given = "const show = () => {}, articles = ['a', 'b'], clicked = true;\n"
    (tmp_path / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    for number, block in enumerate(blocks):
        (tmp_path / f"block{number}.js").write_text(given + block, encoding="utf-8")
    everything = "".join(f'await import("./block{number}.js");\n' for number in range(len(blocks)))
    (tmp_path / "all.js").write_text(everything, encoding="utf-8")
    with running_server(tmp_path / "server") as server:
        server.add_model("news", dim=3)
        features = [f"{name}@{arm}" for arm in "ABC" for name in ("hour", "price", "1")]
        server.add_model("shop", dim=9, blocks=3, arms=["A", "B", "C"], features=features)
        environment = {
            "FEDBANDIT_URL": server.url,
            "FEDBANDIT_TOKEN": server.add_agent("news", "reader"),
            "FEDBANDIT_SHOP_TOKEN": server.add_agent("shop", "reader"),
            "FEDBANDIT_ENROL": server.call("POST", "/v1/models/news/enrolments", {"name_prefix": "web-"})["secret"],
        }
        run = subprocess.run(
            ["node", "all.js"],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        assert server.show("news")["n_obs"] == 1  # the first block flushes
        agents = {each["name"] for each in server.call("GET", "/v1/models/news/agents")["agents"]}
    printed = run.stdout.splitlines()
    assert printed[0] == "false 1"
    assert printed[-1].startswith("web-") and printed[-1] in agents
