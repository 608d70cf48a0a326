"""The files in deploy/: linted by the tools they are for, and nginx really in front of a real server."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import urllib3
import yaml

import fedbandit as fb
from tests.live import LiveServer, running_server
from tests.packaging.conftest import ROOT

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def tool(name: str) -> str:
    """Where a program is that not every machine has."""
    found = shutil.which(name) or shutil.which(name, path=f"{BIN}{os.pathsep}/usr/sbin{os.pathsep}/sbin")
    if found is None:
        pytest.skip(f"NOT CHECKED: there is no {name} on this machine")
    return found


# -- lint

FULL_VERSION = re.compile(r"[a-z]+:\d+(\.\d+)+-[a-z-]+")


def test_images_name_a_full_version() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    images = [service["image"] for service in services.values() if "image" in service]
    images += re.findall(r"^FROM (\S+)", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert len(images) == 3
    for image in images:
        assert FULL_VERSION.fullmatch(image), image
    assert re.search(r"python:3\.11\.\d+-", images[-1])
    assert re.search(r"postgres:16\.\d+-", images[0])


def test_memory_is_limited() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert all(re.fullmatch(r"\d+g", service["mem_limit"]) for service in services.values())
    assert re.search(r"^MemoryMax=2G$", (DEPLOY / "fedbandit.service").read_text(), re.MULTILINE)


def test_the_dockerfile_passes_hadolint() -> None:
    done = run(tool("hadolint"), "--no-color", str(DEPLOY / "Dockerfile"))
    assert done.returncode == 0, done.stdout


def test_the_compose_file_passes_yamllint_and_says_what_it_must() -> None:
    rules = "{extends: default, rules: {line-length: {max: 140}, document-start: disable}}"
    done = run(sys.executable, "-m", "yamllint", "--strict", "-d", rules, str(DEPLOY / "compose.yaml"))
    assert done.returncode == 0, done.stdout
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    server = services["server"]
    assert all(port.startswith("127.0.0.1:") for port in server["ports"]), "tokens must not travel in the clear"
    assert server["depends_on"]["database"]["condition"] == "service_healthy"
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    secrets = [services["database"]["environment"]["POSTGRES_PASSWORD"], server["environment"]["FEDBANDIT_ADMIN_TOKEN"]]
    assert all(re.fullmatch(r"\$\{\w+:\?.+\}", value) for value in secrets), "no default for a secret"


def test_compose_itself_reads_the_file_and_insists_on_the_secrets() -> None:
    compose = tool("docker-compose")
    given = {"POSTGRES_PASSWORD": "p", "FEDBANDIT_ADMIN_TOKEN": "t" * 20}
    done = run(compose, "-f", str(DEPLOY / "compose.yaml"), "config", **given)
    assert done.returncode == 0, done.stderr
    without = run(compose, "-f", str(DEPLOY / "compose.yaml"), "config")
    assert without.returncode != 0 and "deploy/.env" in without.stderr


def test_kubernetes_manifests_fit_the_schemas_and_are_hardened() -> None:
    import kubernetes_validate

    server_ports: set[int] = set()
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for manifest in yaml.safe_load_all(file.read_text()):
            kubernetes_validate.validate(manifest, "1.31", strict=True)
            if manifest["kind"] not in ("Deployment", "StatefulSet"):
                continue
            pod = manifest["spec"]["template"]["spec"]
            assert manifest["spec"]["selector"]["matchLabels"] == manifest["spec"]["template"]["metadata"]["labels"]
            assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
            for container in pod["containers"]:
                assert container["resources"]["limits"]["memory"] and not container["image"].endswith("latest")
                assert container["securityContext"]["readOnlyRootFilesystem"]
                server_ports |= {port["containerPort"] for port in container.get("ports", ())}
                secrets = [item for item in container["env"] if "TOKEN" in item["name"] or "DATABASE" in item["name"]]
                assert all("valueFrom" in item or item["value"].startswith("/tokens/") for item in secrets)
    assert server_ports == {8700}


def test_the_dockerfile_copies_only_what_its_context_has() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    kept = re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    copied = [name for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE) for name in line.split()]
    assert sorted(copied) == sorted(kept)
    assert all((ROOT / name).exists() for name in copied)


def test_the_unit_passes_systemds_own_checks(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    program = tmp_path / "fedbandit"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "fedbandit.service"
    unit.write_text((DEPLOY / "fedbandit.service").read_text().replace("/opt/fedbandit/bin/fedbandit", str(program)))
    done = run(analyze, "verify", "--man=no", str(unit))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    graded = run(analyze, "security", "--offline=true", "--threshold=20", str(unit))
    assert graded.returncode == 0, graded.stdout[-300:]


def test_the_unit_runs_a_command_that_exists() -> None:
    (command,) = re.findall(r"^ExecStart=\S+/fedbandit (.+)$", (DEPLOY / "fedbandit.service").read_text(), re.MULTILINE)
    words = command.split()
    shown = run(str(BIN / "fedbandit"), words[0], "--help", COLUMNS="200", TERM="dumb").stdout
    assert [word for word in words[1:] if word.startswith("--") and word not in shown] == []


# -- nginx


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Proxy:
    """deploy/nginx.conf with this machine's ports and a certificate of its own."""

    def __init__(self, nginx: str, folder: Path, upstream: str) -> None:
        self.nginx, self.folder = nginx, folder
        self.port, self.plain_port = free_port(), free_port()
        self.ca = folder / "cert.pem"
        names = ["-subj", "/CN=bandit.example", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(folder / "key.pem")]
        made = run("openssl", "req", "-x509", *key, "-days", "2", "-out", str(self.ca), *names)
        assert made.returncode == 0, made.stderr
        self.conf = folder / "nginx.conf"
        self.conf.write_text(self._whole((DEPLOY / "nginx.conf").read_text(), upstream))

    def _whole(self, text: str, upstream: str) -> str:
        changes = {
            "server 127.0.0.1:8700;": f"server {upstream};",
            "listen 80;": f"listen 127.0.0.1:{self.plain_port};",
            "listen 443 ssl;": f"listen 127.0.0.1:{self.port} ssl;",
            "/etc/nginx/tls/bandit.example.pem": str(self.ca),
            "/etc/nginx/tls/bandit.example.key": str(self.folder / "key.pem"),
        }
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        paths = "".join(
            f"{name}_temp_path {self.folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        head = f"daemon off;\nmaster_process off;\npid {self.folder}/pid;\nerror_log {self.folder}/error.log;\n"
        return f"{head}events {{}}\nhttp {{\naccess_log off;\n{paths}{text}\n}}\n"

    def check(self) -> subprocess.CompletedProcess[str]:
        return run(self.nginx, "-t", "-p", str(self.folder), "-c", str(self.conf))

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [self.nginx, "-p", str(self.folder), "-c", str(self.conf)], stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 15
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return process
            except OSError:
                time.sleep(0.05)
        process.kill()
        process.wait()
        pytest.fail((self.folder / "error.log").read_text()[-2000:])


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, Proxy]]:
    """A server and nginx in front of it."""
    nginx = tool("nginx")
    with running_server(tmp_path_factory.mktemp("server")) as server:
        server.add_model("news", dim=3, alpha=0.5)
        proxy = Proxy(nginx, tmp_path_factory.mktemp("nginx"), server.url.removeprefix("http://"))
        checked = proxy.check()
        assert checked.returncode == 0, checked.stderr
        process = proxy.start()
        yield server, proxy
        process.terminate()
        process.wait(20)


@pytest.fixture
def http(behind: tuple[LiveServer, Proxy]) -> Iterator[urllib3.PoolManager]:
    context = ssl.create_default_context(cafile=str(behind[1].ca))
    with urllib3.PoolManager(ssl_context=context, retries=False, timeout=20) as pool:
        yield pool


def test_agents_exchange_through_nginx(behind: tuple[LiveServer, Proxy], tmp_path: Path) -> None:
    server, proxy = behind
    token = server.add_agent("news", "shop-1")
    with fb.connect(f"https://127.0.0.1:{proxy.port}", model="news", token=token, ca=proxy.ca) as agent:
        for _ in range(100):
            agent.observe(agent.choose(np.eye(3)), 1.0)
        agent.flush()
        assert agent.status().exchanges > 1
    assert server.show("news")["n_obs"] == 100


def test_uploads_beyond_nginxs_usual_limit_are_let_through(behind: tuple[LiveServer, Proxy]) -> None:
    server, proxy = behind
    server.add_model("wide", dim=600)
    token = server.add_agent("wide", "shop-2")
    with fb.connect(f"https://127.0.0.1:{proxy.port}", model="wide", token=token, ca=proxy.ca, sync="inline") as agent:
        agent.observe(np.ones(600) / 600, 1.0)
        agent.flush()
        assert agent.status().bytes_sent > 1 << 20, "nginx would refuse this by default"
    assert server.show("wide")["n_obs"] == 1


def test_a_body_that_is_too_long_is_refused_in_the_servers_words(
    behind: tuple[LiveServer, Proxy], http: urllib3.PoolManager
) -> None:
    server, proxy = behind
    token = server.add_agent("news", "shop-3")
    headers = {"Authorization": f"Bearer {token}"}
    for size in (10_000, 1_000_000, 3_000_000):
        answer = http.request(
            "POST", f"https://127.0.0.1:{proxy.port}/v1/models/news/sync", body=bytes(size), headers=headers
        )
        assert (answer.status, answer.json()["error"]) == (413, "body_too_large"), size


def test_the_dashboard_streams_and_its_cookie_is_secure(
    behind: tuple[LiveServer, Proxy], http: urllib3.PoolManager
) -> None:
    server, proxy = behind
    url = f"https://127.0.0.1:{proxy.port}"
    login = http.request(
        "POST", f"{url}/login", fields={"token": server.admin_token}, encode_multipart=False, redirect=False
    )
    cookie = login.headers["Set-Cookie"]
    assert "secure" in cookie.lower() and "httponly" in cookie.lower() and "samesite=strict" in cookie.lower()
    headers = {"Cookie": cookie.partition(";")[0]}
    assert http.request("GET", f"{url}/models/news", headers=headers).status == 200
    stream = http.request("GET", f"{url}/live/models/news", headers=headers, preload_content=False)
    assert stream.headers["Content-Type"].startswith("text/event-stream")
    seen = b""
    while b"data:" not in seen:  # a stream that is held back ends this by the pool's timeout of 20 s
        piece = stream.read1(65536)
        assert piece, "the stream ended before its first event"
        seen += piece
    stream.close()


def test_plain_http_is_sent_to_https_and_metrics_need_a_token(
    behind: tuple[LiveServer, Proxy], http: urllib3.PoolManager
) -> None:
    _, proxy = behind
    moved = http.request("GET", f"http://127.0.0.1:{proxy.plain_port}/v1/models", redirect=False)
    assert moved.status == 308 and moved.headers["Location"].startswith("https://127.0.0.1/")
    assert http.request("GET", f"https://127.0.0.1:{proxy.port}/metrics").status == 401


def test_the_document_about_deployment_names_these_files() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    for name in ("fedbandit.service", "nginx.conf", "Dockerfile", "compose.yaml"):
        assert f"(../deploy/{name})" in page
    assert page.count("not run by our tests") >= 2
