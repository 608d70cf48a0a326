"""An agent of the model that is deleted and created again: it uses the old one until the new one is published.

python -m tests.chaos.recreated_model_agent URL "" NAME FOLDER STATE_DIR PACE_S MAX_PENDING
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

import fedbandit as fb
from fedbandit.errors import Refused
from tests.chaos.agent import AgentProgram, run_agent
from tests.chaos.schedule import TENANT

REMADE = "remade"  # the model, and the file that describes it


class RecreatedModelAgent(AgentProgram):
    """Starts new records with each generation of the model."""

    model = REMADE
    generation = 0

    def connection(self) -> None:
        self.command()
        found = self.newest()
        if not found:
            time.sleep(0.1)
            return
        if found["generation"] != self.generation:
            self.move(found)
        try:
            super().connection()
        except Refused as error:  # its model was deleted before it reconnected
            self.record.write(event=f"refused_{error.code}")
            time.sleep(0.2)

    def move(self, found: dict[str, Any]) -> None:
        """Switch to the new model, with another token and directory."""
        root = self.state_dir.parent
        shutil.rmtree(root / f"{TENANT}-{self.generation}", ignore_errors=True)
        self.generation, self.token = found["generation"], found["token"]
        self.open_records(f"{TENANT}-{self.generation}", root / f"{TENANT}-{self.generation}")

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
            self.record.write(event=f"refused_{error.code}")

    def refresh(self, agent: fb.LiveAgent) -> None:
        try:
            super().refresh(agent)
        except Refused as error:
            self.record.write(event=f"refused_{error.code}")

    def checkpoint(self, agent: fb.LiveAgent, number: int) -> None:
        try:
            super().checkpoint(agent, number)
        except Refused as error:
            self.record.write(event=f"checkpoint_refused_{error.code}")


if __name__ == "__main__":
    run_agent(RecreatedModelAgent, *sys.argv[1:])
