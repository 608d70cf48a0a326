"""`make audit`: known vulnerabilities of the versions in constraints.txt, by pip-audit, where its service can be asked.

pip-audit ends with success even when it could look nothing up. This says how many packages were really looked up, and
lists the versions where none was, so that somebody can ask elsewhere. Exit status: 0 all looked up and none known,
1 something is known, 2 not everything could be looked up.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "constraints.txt"
TIMEOUT_S = 300


def main() -> int:
    """Run the audit and print the result."""
    pins = [line for line in PINS.read_text(encoding="utf-8").splitlines() if "==" in line]
    found = ask()
    looked_up = [entry for entry in found if "skip_reason" not in entry]
    known = [entry for entry in looked_up if entry.get("vulns")]
    for entry in known:
        print(entry["name"], entry["version"], ", ".join(problem["id"] for problem in entry["vulns"]))
    print(f"{len(looked_up)} of {len(pins)} packages looked up, {len(known)} with known vulnerabilities")
    if len(looked_up) < len(pins):
        done = {entry["name"].lower() for entry in looked_up}
        print("Not looked up, because the vulnerability service did not know them or could not be reached:")
        print("  " + ", ".join(pin for pin in pins if pin.partition("==")[0].lower() not in done))
    return 1 if known else 2 if len(looked_up) < len(pins) else 0


def ask() -> list[dict[str, Any]]:
    """The result of pip-audit for each pin; empty where it is not installed or fails."""
    if importlib.util.find_spec("pip_audit") is None:
        print("pip-audit is not installed: pip install pip-audit")
        return []
    words = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json", "--timeout", "10"]
    command = [sys.executable, "-m", "pip_audit", *words, "--requirement", str(PINS)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        answer: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        print(f"pip-audit did not answer: {error}")
        return []
    return answer


if __name__ == "__main__":
    sys.exit(main())
