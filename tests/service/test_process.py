"""`fedbandit serve` as an operator meets it: tokens at the first start, TLS, signals, and clear refusals."""

import json
import os
import shutil
import ssl
import subprocess
import sys

import pytest
import urllib3

from tests.live import LiveServer, running_server


def printed_token(server: LiveServer) -> str | None:
    found = [line.split()[-1] for line in server.lines if line.startswith("admin token")]
    return found[-1] if found else None


def serve(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A server that should not even start."""
    command = [sys.executable, "-m", "fedbandit.cli.serve", "--port", "0", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})


def test_the_first_start_prints_an_admin_token_once_and_another_one_on_request(tmp_path):
    with running_server(tmp_path, environment={"FEDBANDIT_ADMIN_TOKEN": ""}) as server:
        first = printed_token(server)
        assert first is not None and len(first) > 40
        assert server.request("GET", "/v1/models", token=first).status == 200
        assert server.stop() == 0
        assert first not in server.log()

        server.lines.clear()
        server.start()
        assert printed_token(server) is None
        assert server.request("GET", "/v1/models", token=first).status == 200
        server.stop()

        server.options["new_admin_token"] = True
        server.start()
        second = printed_token(server)
        assert second is not None
        assert server.request("GET", "/v1/models", token=second).status == 200
        assert server.request("GET", "/v1/models", token=first).status == 401


def test_an_admin_token_from_the_environment_works_and_is_not_printed(tmp_path):
    with running_server(tmp_path) as server:
        assert printed_token(server) is None
        assert server.request("GET", "/v1/models").status == 200
        server.stop()
        old, server.admin_token = server.admin_token, "another-admin-token-0123"
        server.start()
        assert server.request("GET", "/v1/models").status == 200
        assert server.request("GET", "/v1/models", token=old).status == 401


def test_a_second_server_on_the_same_directory_is_refused_with_a_sentence(tmp_path):
    with running_server(tmp_path) as server:
        finished = serve("--data", str(server.data_dir))
    assert finished.returncode == 1
    assert "another server uses the data directory" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_public_address_is_refused_without_tls(tmp_path):
    finished = serve("--data", str(tmp_path), "--host", "0.0.0.0")
    assert finished.returncode == 1
    assert "without TLS" in finished.stderr


def test_a_database_that_cannot_be_reached_is_told_without_its_password():
    finished = serve("--database", "postgresql://user:secret-word@127.0.0.1:1/none")
    assert finished.returncode == 1
    assert "store_unavailable" in finished.stderr
    assert "secret-word" not in finished.stderr


def test_the_data_directory_is_for_its_owner_only(tmp_path):
    with running_server(tmp_path) as server:
        assert server.data_dir.stat().st_mode & 0o077 == 0


def test_logs_are_one_json_object_a_line(tmp_path):
    with running_server(tmp_path) as server:
        server.add_model("news")
        server.stop()
        entries = [json.loads(line) for line in server.log().splitlines()]
    assert {"model_created", "request"} <= {entry["event"] for entry in entries}


# -- TLS

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made by the openssl command"
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, a server certificate for 127.0.0.1 and a client certificate, and a stranger's."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for authority in ("ca", "stranger"):
        files = ["-keyout", f"{authority}.key", "-out", f"{authority}.pem"]
        openssl("req", "-x509", *key, *files, "-days", "2", "-subj", f"/CN={authority}")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name, authority in (("server", "ca"), ("client", "ca"), ("intruder", "stranger")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial", "-days", "2"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-extfile", "names", "-out", f"{name}.pem")
    return folder


@needs_openssl
def test_a_server_with_tls_is_reached_by_those_who_trust_its_authority(tmp_path, certificates):
    options = {"tls_cert": certificates / "server.pem", "tls_key": certificates / "server.key"}
    with running_server(tmp_path, **options) as server:
        assert server.url.startswith("https://")
        server.http = urllib3.PoolManager(retries=False, ca_certs=str(certificates / "ca.pem"))
        assert server.request("GET", "/v1/models").status == 200
        server.http.clear()
        server.http = urllib3.PoolManager(retries=False, ca_certs=str(certificates / "stranger.pem"))
        with pytest.raises(urllib3.exceptions.SSLError):
            server.request("GET", "/healthz")


@needs_openssl
def test_mutual_tls_lets_in_only_clients_of_the_authority(tmp_path, certificates):
    options = {
        "tls_cert": certificates / "server.pem",
        "tls_key": certificates / "server.key",
        "client_ca": certificates / "ca.pem",
    }

    def client(name: str | None) -> urllib3.PoolManager:
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        if name is not None:
            context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
        return urllib3.PoolManager(retries=False, ssl_context=context)

    with running_server(tmp_path, **options) as server:
        server.http = client("client")
        assert server.request("GET", "/v1/models").status == 200
        for stranger in (None, "intruder"):
            server.http.clear()
            server.http = client(stranger)
            with pytest.raises((urllib3.exceptions.SSLError, urllib3.exceptions.ProtocolError)):
                server.request("GET", "/healthz")
