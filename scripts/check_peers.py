"""Check the statements of docs/comparison.md about other libraries: prints one line for each cell that can be checked.

Not part of the tests. In an environment of its own: pip install vowpalwabbit mabwiser river bayesianbandits coba flwr
"""

from __future__ import annotations

import inspect
import pickle
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

CONTEXT, VECTORS = [1.0, 2.0], [[1, 0], [0, 1], [1, 1]]


def vowpalwabbit() -> dict[str, Any]:
    """Text in, probabilities out; models of two workspaces merged into one."""
    import vowpalwabbit as vw

    spaces = [vw.Workspace("--cb_explore_adf --regcbopt --quiet") for _ in range(2)]
    for space in spaces:
        space.learn(["shared | s", "0:0.1:0.5 | a:1", "| b:2"])
    with tempfile.TemporaryDirectory() as folder:
        spaces[0].save(str(Path(folder) / "model"))
        saved = (Path(folder) / "model").stat().st_size > 0
    return {
        "confidence bounds (RegCB), other actions each time": len(spaces[0].predict(["shared | s", "| b:1", "| c:1"])),
        "has --linucb": _works(lambda: vw.Workspace("--linucb --quiet")),
        "merge_models": type(vw.merge_models(None, spaces)).__name__,
        "saves": saved,
    }


def mabwiser() -> dict[str, Any]:
    """LinUCB with one model for each arm."""
    from mabwiser.mab import MAB, LearningPolicy

    mab = MAB([1, 2], LearningPolicy.LinUCB(alpha=1.0))
    mab.fit([1, 2, 1], [1, 0, 1], [[1, 0], [0, 1], [1, 1]])
    return {
        "predict takes": str(list(inspect.signature(mab.predict).parameters)),
        "arms by name": [hasattr(mab, "add_arm"), hasattr(mab, "remove_arm")],
        "pickles": _works(lambda: pickle.loads(pickle.dumps(mab)).predict([[1, 0]])),
    }


def river() -> dict[str, Any]:
    """LinUCB, disjoint; arms are named at each pull."""
    from river import bandit

    policy = bandit.LinUCBDisjoint(alpha=0.1)
    policy.update(policy.pull([1, 2], context={"x": 1.0}), {"x": 1.0}, 1.0)
    return {
        "another set of arms": policy.pull([1, 2, 3], context={"x": 1.0}),
        "contextual policies": [name for name in dir(bandit) if "Lin" in name],
        "evaluation": [name for name in dir(bandit) if name.startswith("evaluate")],
        "pickles": _works(lambda: pickle.loads(pickle.dumps(policy))),
    }


def bayesianbandits() -> dict[str, Any]:
    """A shared learner over features of arms; upper bounds by posterior samples."""
    import bayesianbandits as bb

    doc = inspect.getdoc(bb.UpperConfidenceBound) or ""
    return {
        "shared learner over arm features": hasattr(bb, "LipschitzContextualAgent"),
        "bound by samples": "Monte Carlo" in doc,
        "arms by name": hasattr(bb.LipschitzContextualAgent, "add_arm"),
        "says it pickles": "pickle-compatible" in (inspect.getdoc(bb.ContextualAgent) or ""),
    }


def coba() -> dict[str, Any]:
    """LinUCB over features of context and action."""
    import coba as library

    learner = library.LinUCBLearner()
    action, probability = learner.predict(CONTEXT, VECTORS)
    learner.learn(CONTEXT, action, 1.0, probability)
    return {
        "other actions each time": learner.predict(CONTEXT, [[0.5, 0.5], [0, 1]])[0],
        "pickles after learning": _works(lambda: pickle.dumps(learner)),
        "experiments": hasattr(library, "Experiment"),
    }


def flwr() -> dict[str, Any]:
    """Rounds that wait for the replies of clients; nothing about bandits."""
    import flwr as library
    from flwr.serverapp.strategy import FedAvg

    sources = list(Path(str(library.__file__)).parent.rglob("*.py"))
    return {
        "files that say bandit": sum("bandit" in path.read_text(encoding="utf-8").lower() for path in sources),
        "a round waits": "send_and_receive" in inspect.getsource(FedAvg.start),
    }


def _works(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is the answer
        return f"no: {error}"[:80]
    return "yes"


if __name__ == "__main__":
    for peer in (vowpalwabbit, mabwiser, river, bayesianbandits, coba, flwr):
        print(f"\n{peer.__name__} {version(peer.__name__)}")
        for cell, found in peer().items():
            print(f"  {cell}: {found}")
