"""One agent of the demo as a process: it works through its images and reports progress as JSON lines.

    python -m fedbandit.demo.worker task.json          (the token is in FEDBANDIT_TOKEN)

Each choice is reported before its reward is observed, so the reports are complete even if the process is killed.
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
class AgentTask:
    """The options of one agent process."""

    url: str
    model: str
    agent: str
    images: str
    state_dir: str
    pace_s: float  # mean time from one image to the next
    seed: int
    forever: bool = False  # repeat the images without end

    def save(self, path: Path) -> None:
        """Write the task to a file."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> AgentTask:
        """Read the task from a file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def work(task: AgentTask, token: str) -> None:
    """Work through the images, from where an earlier process stopped."""
    images = Images.load(Path(task.images))
    with fb.connect(task.url, model=task.model, token=token, agent=task.agent, state_dir=task.state_dir) as agent:
        n = agent.status().rounds
        rng = np.random.default_rng([task.seed, n])
        report({"start": n, "pending": agent.status().pending})
        for decision in list(agent.pending):  # chosen by a process that was killed before the reward arrived
            n = observe_reward(agent, images, n, decision)
        while task.forever or n < len(images):
            decision = agent.choose_context(images.contexts[n % len(images)])
            report({"asked": n})
            time.sleep(rng.exponential(task.pace_s) / 2)  # the delay of the reward
            n = observe_reward(agent, images, n, decision)
            time.sleep(rng.exponential(task.pace_s) / 2)
        agent.flush(60.0)
        report({"done": True, **counters(agent)})


def observe_reward(agent: fb.LiveAgent, images: Images, n: int, decision: fb.Decision) -> int:
    """Report the choice for image n, then observe its reward."""
    arm = -1 if decision.block is None else decision.block
    reward = images.reward(n % len(images), arm)
    report({"n": n, "arm": arm, "reward": reward, **counters(agent)})
    agent.observe(decision, reward)
    return n + 1


def counters(agent: fb.LiveAgent) -> dict[str, Any]:
    """The counters that the display shows."""
    status = agent.status()
    return {
        "exchanges": status.exchanges,
        "refreshes": status.refreshes,
        "version": status.model_version,
        "bytes": status.bytes_sent + status.bytes_received,
    }


def report(line: dict[str, Any]) -> None:
    """Print one report, unbuffered."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    try:
        work(AgentTask.load(Path(sys.argv[1])), os.environ["FEDBANDIT_TOKEN"])
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)
