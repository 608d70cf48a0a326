"""TLS and mutual TLS against a real server, with certificates made on the spot."""

import shutil
import subprocess

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import NotReachable
from tests.live import running_server

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command to make certificates"
)


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A small authority, a server's and an agent's certificate."""
    folder = tmp_path_factory.mktemp("certificates")
    new = ["req", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    ca = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    openssl(folder, *new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", *ca)
    (folder / "server.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n")
    (folder / "agent.ext").write_text("extendedKeyUsage=clientAuth\n")
    for name in ("server", "agent"):
        openssl(folder, *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext"]
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)
    return folder


def test_an_agent_checks_the_server_and_shows_its_own_certificate(certificates, tmp_path):
    with running_server(
        tmp_path,
        tls_cert=certificates / "server.pem",
        tls_key=certificates / "server.key",
    ) as server:
        server.http.connection_pool_kw["ca_certs"] = str(certificates / "ca.pem")
        server.add_model("news", alpha=0.0)
        token = server.add_agent("news", "a")
        with pytest.raises(NotReachable, match="certificate"):
            fb.connect(server.url, model="news", token=token, agent="a")
        own = {"ca": certificates / "ca.pem", "cert": certificates / "agent.pem", "key": certificates / "agent.key"}
        with fb.connect(server.url, model="news", token=token, agent="a", **own) as agent:
            agent.observe(agent.choose(np.eye(3)), 1.0)
            agent.flush(10.0)
            assert agent.status().exchanges == 1


def test_a_server_that_wants_certificates_gets_one(certificates, tmp_path):
    import urllib3

    with running_server(
        tmp_path,
        tls_cert=certificates / "server.pem",
        tls_key=certificates / "server.key",
        client_ca=certificates / "ca.pem",
    ) as server:
        own = {"ca": certificates / "ca.pem", "cert": certificates / "agent.pem", "key": certificates / "agent.key"}
        server.http = urllib3.PoolManager(
            retries=False, ca_certs=str(own["ca"]), cert_file=str(own["cert"]), key_file=str(own["key"])
        )
        server.add_model("news", alpha=0.0)
        token = server.add_agent("news", "a")
        with pytest.raises(NotReachable):
            fb.connect(server.url, model="news", token=token, agent="a", ca=own["ca"])
        with fb.connect(server.url, model="news", token=token, agent="a", **own) as agent:
            agent.observe(np.ones(3), 1.0)
            agent.flush(10.0)
            assert agent.status().exchanges == 1
