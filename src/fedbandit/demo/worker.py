"""One agent of the demo, as a process: sees its images one after another, and tells what it does in lines of JSON.

    python -m fedbandit.demo.worker task.json          (the token comes in FEDBANDIT_TOKEN)

Each choice is told before its reward is booked, so whoever reads along knows what was seen even if we are killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fedbandit as fb
from fedbandit.demo.images import Images


@dataclass(frozen=True, slots=True)
class Task:
    """Who, where, with which images, and how fast."""

    url: str
    model: str
    agent: str
    images: str
    state_dir: str
    pace_s: float  # mean time from one image to the next
    seed: int
    forever: bool = False  # begin again with the first image after the last

    def save(self, path: Path) -> None:
        """To a file that the process reads."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Task:
        """The task of a file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def work(task: Task, token: str) -> None:
    """Go through the images, from wherever an earlier process got to."""
    images = Images.load(Path(task.images))
    with fb.connect(task.url, model=task.model, token=token, agent=task.agent, state_dir=task.state_dir) as agent:
        n = agent.status().rounds
        rng = np.random.default_rng([task.seed, n])
        tell({"start": n, "waiting": agent.status().pending})
        for decision in list(agent.pending):  # chosen by a process that was killed before the reward came
            n = book(agent, images, n, decision)
        while task.forever or n < len(images):
            decision = agent.choose(images.actions(n % len(images)))
            tell({"asked": n})
            time.sleep(rng.exponential(task.pace_s) / 2)  # people take their time to react
            n = book(agent, images, n, decision)
            time.sleep(rng.exponential(task.pace_s) / 2)
        agent.flush(60.0)
        tell({"done": True, **numbers(agent)})


def book(agent: fb.LiveAgent, images: Images, n: int, decision: fb.Decision) -> int:
    """Tell the choice for image n, then book its reward."""
    arm = -1 if decision.index is None else decision.index
    reward = images.reward(n % len(images), arm)
    tell({"n": n, "arm": arm, "reward": reward, **numbers(agent)})
    agent.observe(decision, reward)
    return n + 1


def numbers(agent: fb.LiveAgent) -> dict[str, Any]:
    """What the display shows."""
    status = agent.status()
    return {
        "exchanges": status.exchanges,
        "refreshes": status.refreshes,
        "version": status.model_version,
        "bytes": status.bytes_sent + status.bytes_received,
    }


def tell(line: dict[str, Any]) -> None:
    """To whoever reads along, at once."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    try:
        work(Task.load(Path(sys.argv[1])), os.environ["FEDBANDIT_TOKEN"])
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)
