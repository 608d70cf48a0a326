"""Valid and invalid certificates for handshakes, made by the openssl command."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

CA = "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"
HERE = "subjectAltName=IP:127.0.0.1,DNS:localhost"
KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
# name -> authority, extensions, days from and to today
WANTED = {
    "server": ("ca", (HERE, "extendedKeyUsage=serverAuth"), -1, 2),
    "server-expired": ("ca", (HERE, "extendedKeyUsage=serverAuth"), -9, -2),
    "server-elsewhere": ("ca", ("subjectAltName=DNS:elsewhere.example", "extendedKeyUsage=serverAuth"), -1, 2),
    "server-foreign": ("foreign", (HERE, "extendedKeyUsage=serverAuth"), -1, 2),
    "agent": ("ca", ("extendedKeyUsage=clientAuth",), -1, 2),
    "agent-expired": ("ca", ("extendedKeyUsage=clientAuth",), -9, -2),
    "agent-foreign": ("foreign", ("extendedKeyUsage=clientAuth",), -1, 2),
    "agent-for-servers": ("ca", (HERE, "extendedKeyUsage=serverAuth"), -1, 2),
}


def make_certificates(folder: Path) -> Path:
    """Two authorities, ours and a foreign one, and what each has signed."""
    for name in ("ca", "foreign"):
        extensions = [word for extension in CA for word in ("-addext", extension)]
        subject = ["-subj", f"/CN={name}", "-days", "3", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        _openssl(folder, "req", "-x509", *KEY, *subject, *extensions)
        (folder / f"{name}-index.txt").touch()
        (folder / f"{name}.cnf").write_text(_authority(name))
    for name, (authority, extensions, first, last) in WANTED.items():
        (folder / f"{name}.ext").write_text("\n".join(extensions) + "\n")
        _openssl(folder, "req", "-new", *KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        dates = ["-startdate", _day(first), "-enddate", _day(last)]
        files = ["-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", f"{name}.ext"]
        _openssl(folder, "ca", "-batch", "-notext", "-config", f"{authority}.cnf", *dates, *files)
    return folder


def _authority(name: str) -> str:
    lines = ["[ca]", "default_ca = it", "[it]", f"database = {name}-index.txt", f"certificate = {name}.pem"]
    lines += [f"private_key = {name}.key", "new_certs_dir = .", "default_md = sha256", "policy = any"]
    return "\n".join([*lines, "unique_subject = no", "rand_serial = yes", "[any]", "commonName = supplied"]) + "\n"


def _day(offset: int) -> str:
    return (datetime.now(UTC) + timedelta(days=offset)).strftime("%Y%m%d%H%M%SZ")


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
