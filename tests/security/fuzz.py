"""`make fuzz`: coverage-guided fuzzing of everything that reads a body, by atheris, with the vectors of docs as seeds.

    python -m tests.security.fuzz --runs 1000000

libFuzzer gives the bytes and follows the coverage of our modules; `mutate` keeps a part of them well-formed; `harness`
fails on anything but a merge or a named refusal. The parent process counts, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).with_name("corpus.json")
OURS = ["fedbandit.wire", "fedbandit.service", "fedbandit.sdk", "fedbandit.core.plausibility", "fedbandit.algorithms"]
MAX_BYTES = 2048  # more than a body of this model may have, so that the limit is met as well
RSS_LIMIT_MB = 512


def main() -> None:
    """Run the fuzzer in a child process and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="renew corpus.json with the inputs found")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = _run(folder, options.runs, options.seed)
        if options.keep and not found["crashes"]:
            _keep(folder)
    print(json.dumps(found))
    sys.exit(1 if found["crashes"] else 0)


def _run(folder: Path, runs: int, seed: int) -> dict[str, object]:
    corpus, artifacts = folder / "corpus", folder / "artifacts"
    for place in (corpus, artifacts):
        place.mkdir()
    _write_seeds(corpus)
    began = time.monotonic()
    done = subprocess.run(
        _command(corpus, artifacts, runs, seed), cwd=ROOT, capture_output=True, text=True, check=False
    )
    log = done.stderr
    crashes = sorted(path.name for path in artifacts.iterdir())
    if crashes or done.returncode:
        sys.stderr.write(log[-6000:])
        for path in artifacts.iterdir():
            sys.stderr.write(f"\n{path.name}: {base64.b64encode(path.read_bytes()).decode()}\n")
    return {
        "inputs": _stat(log, "number_of_executed_units"),
        "crashes": max(len(crashes), int(done.returncode != 0)),
        "peak_rss_mb": _stat(log, "peak_rss_mb"),
        "corpus": len(list(corpus.iterdir())),
        "coverage": max((int(n) for n in re.findall(r"cov: (\d+)", log)), default=0),
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
    }


def _command(corpus: Path, artifacts: Path, runs: int, seed: int) -> list[str]:
    limits = [f"-runs={runs}", f"-seed={seed}", f"-max_len={MAX_BYTES}", f"-rss_limit_mb={RSS_LIMIT_MB}", "-timeout=10"]
    more = ["-print_final_stats=1", f"-artifact_prefix={artifacts}/"]
    return [sys.executable, "-m", "tests.security.fuzz_target", str(corpus), *limits, *more]


def _stat(log: str, name: str) -> int:
    found = re.search(rf"stat::{name}:\s+(\d+)", log)
    return int(found[1]) if found else 0


def _write_seeds(corpus: Path) -> None:
    from tests.security.mutate import seeds

    kept = [base64.b64decode(text) for text in json.loads(CORPUS.read_text())] if CORPUS.exists() else []
    for number, body in enumerate([*seeds(), *kept]):
        (corpus / f"seed-{number}").write_bytes(body)


def _keep(folder: Path) -> None:
    """Save inputs that reached new code, for the regression test."""
    from tests.security.mutate import seeds

    found = {path.read_bytes() for path in (folder / "corpus").iterdir()} - set(seeds())
    bodies = sorted(found, key=lambda body: (len(body), body))
    CORPUS.write_text(json.dumps([base64.b64encode(body).decode() for body in bodies], indent=0) + "\n")


def fuzz(arguments: list[str]) -> None:
    """The child process: instrument the package's modules at import, then run libFuzzer."""
    import atheris

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    logging.disable()
    warnings.simplefilter("error")
    with atheris.instrument_imports(include=OURS):
        from tests.security.endpoint_harness import EndpointHarness
    from tests.security.mutate import mutated

    harness = EndpointHarness()

    def one(body: bytes) -> None:
        harness.upload(body)
        harness.answer(body)

    def change(body: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() < 0.3:
            return bytes(atheris.Mutate(body, max_size))
        return mutated(body, rng)[:max_size]

    atheris.Setup(arguments, one, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
