"""An agent of the model that is deleted and created again: it goes on with the old one until it is told of the new.

python -m tests.chaos.tenant URL "" NAME FOLDER STATE_DIR PACE_S MAX_PENDING
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

import fedbandit as fb
from fedbandit.errors import Refused
from tests.chaos.agent import Torment, torment
from tests.chaos.schedule import TENANT

REMADE = "remade"  # the model, and the file that tells of it


class Tenant(Torment):
    """Books begin anew with each generation of the model."""

    model = REMADE
    generation = 0

    def live(self) -> None:
        self.command()
        found = self.newest()
        if not found:
            time.sleep(0.1)
            return
        if found["generation"] != self.generation:
            self.move(found)
        try:
            super().live()
        except Refused as error:  # its model was deleted before it came back
            self.truth.write(event=f"refused_{error.code}")
            time.sleep(0.2)

    def move(self, found: dict[str, Any]) -> None:
        """On to the new model, with a token and a directory of its own."""
        root = self.state_dir.parent
        shutil.rmtree(root / f"{TENANT}-{self.generation}", ignore_errors=True)
        self.generation, self.token = found["generation"], found["token"]
        self.keep_books(f"{TENANT}-{self.generation}", root / f"{TENANT}-{self.generation}")

    def newest(self) -> dict[str, Any]:
        """What was last published about the model."""
        path = self.folder / f"{REMADE}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def command(self) -> dict[str, Any]:
        found = super().command()
        self.ended = self.ended or bool(found.get("finish"))
        return found

    def is_over(self) -> bool:
        return self.newest()["generation"] != self.generation

    def flush(self, agent: fb.LiveAgent) -> None:
        try:
            super().flush(agent)
        except Refused as error:
            self.truth.write(event=f"refused_{error.code}")

    def refresh(self, agent: fb.LiveAgent) -> None:
        try:
            super().refresh(agent)
        except Refused as error:
            self.truth.write(event=f"refused_{error.code}")

    def checkpoint(self, agent: fb.LiveAgent, number: int) -> None:
        try:
            super().checkpoint(agent, number)
        except Refused as error:
            self.truth.write(event=f"checkpoint_refused_{error.code}")


if __name__ == "__main__":
    torment(Tenant, *sys.argv[1:])
