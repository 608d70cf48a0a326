"""The page of the Python API, from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import FunctionType, ModuleType
from typing import Any

import fedbandit
from fedbandit import sdk
from fedbandit.algorithms.base import BaseAgent, Scores
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent, FedLinUCBServer
from fedbandit.simulation.participation import PARTICIPATION
from fedbandit.simulation.worlds import WORLDS

HEAD = """# Python API

<!-- Written by scripts/make_reference.py from the docstrings: `make docs` renews it, a test compares. -->

Everything below is `import fedbandit as fb`, then `fb.name`. The examples are doctests and run with the tests. Names
that start with `_` and modules that are not on this page may change at any time.
"""
SECTIONS: dict[str, tuple[str, ...]] = {
    "Algorithms": ("FedLinUCB", "AsyncLinUCB", "DisLinUCB", "OFUL"),
    "Decisions and messages": ("Decision", "Upload", "Download", "Pull", "Poll", "Receipt"),
    "Live": ("connect", "LiveAgent"),
    "Features and decision sets": ("block_features", "HashingFeatures", "Ball"),
    "Statistics and models": ("SufficientStats", "RidgeModel", "load"),
    "Confidence radii": ("radius",),
    "Theory": ("theory",),
    "Simulation": ("simulate", "Trace", "worlds", "participation"),
    "Errors": ("errors",),
}
BESIDES: dict[str, tuple[tuple[str, Any], ...]] = {
    "Algorithms": (
        ("An agent", BaseAgent),
        ("FedLinUCB's agent", FedLinUCBAgent),
        ("FedLinUCB's server", FedLinUCBServer),
        ("Scores", Scores),
    ),
    "Live": tuple(
        (f"fedbandit.sdk.{name}", getattr(sdk, name)) for name in sdk.__all__ if name not in fedbandit.__all__
    ),
}
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def page() -> str:
    """Every public name once, under its section."""
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(fedbandit.__all__), set(listed) ^ set(fedbandit.__all__)
    return HEAD + "".join(_section(title, names) for title, names in SECTIONS.items())


def _section(title: str, names: tuple[str, ...]) -> str:
    parts = [_entry(f"fb.{name}", getattr(fedbandit, name)) for name in names]
    parts += [_entry(shown, thing) for shown, thing in BESIDES.get(title, ())]
    return f"\n## {title}\n" + "".join(parts)


def _entry(shown: str, thing: Any) -> str:
    if isinstance(thing, ModuleType):
        return _module(shown, thing)
    heading = f"\n### {shown}\n\n"
    if inspect.isclass(thing):
        return heading + _signature(shown, thing) + _words(thing) + _methods(thing)
    return heading + _signature(shown, thing) + _words(thing)


def _module(shown: str, module: ModuleType) -> str:
    text = f"\n### {shown}\n\n" + _words(module)
    makers = {"worlds": WORLDS, "participation": PARTICIPATION}.get(shown.removeprefix("fb."), {})
    for name, maker in makers.items():
        text += _item(f"{shown}.{name.replace('-', '_')}", maker)
    for name, thing in vars(module).items():
        if isinstance(thing, FunctionType) and thing.__module__ == module.__name__ and _is_shown(shown, name):
            text += _item(f"{shown}.{name}", thing)
    return text


def _is_shown(shown: str, name: str) -> bool:
    """Modules also hold helpers of the simulator; those that users call are listed."""
    users = {
        "fb.worlds": {"from_arrays", "real", "from_parquet"},
        "fb.participation": {"by_rows", "sequence", "episodes"},
    }
    return not name.startswith("_") and name in users.get(shown, {name})


def _methods(kind: type) -> str:
    text = ""
    for name, member in vars(kind).items():
        call = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if name.startswith("_") or not _has_words(call):
            continue
        if isinstance(call, property):
            text += f"\n#### {name}\n\nA property. {_words(call)}"
        elif isinstance(call, FunctionType):
            text += f"\n#### {name}\n{_item(name, call)}"
    return text


def _has_words(thing: Any) -> bool:
    return bool(getattr(thing, "__doc__", None))


def _item(shown: str, thing: Any) -> str:
    return "\n" + _signature(shown, thing) + _words(thing)


def _signature(shown: str, thing: Any) -> str:
    """The call as a block that wraps when it is long; `self` is left out."""
    if inspect.isclass(thing) and not dataclasses.is_dataclass(thing):
        return ""  # others make these: `rule.agent`, `rule.server`, `fb.connect`
    signature = inspect.signature(thing)
    parameters = [p for name, p in signature.parameters.items() if name not in ("self", "cls")]
    signature = signature.replace(parameters=parameters)
    if inspect.isclass(thing):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
    name = thing.__name__ if " " in shown else shown
    line = name + _plain(str(signature))
    if len(line) > 100:
        line = name + _plain(_wrapped(signature))
    return f"<!-- not run: a signature -->\n```python\n{line}\n```\n\n"


def _wrapped(signature: inspect.Signature) -> str:
    lines = [f"    {parameter}," for parameter in signature.parameters.values()]
    only = next((i for i, p in enumerate(signature.parameters.values()) if p.kind is p.KEYWORD_ONLY), None)
    if only is not None and not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        lines.insert(only, "    *,")
    end = signature.return_annotation
    arrow = (
        ""
        if end is inspect.Signature.empty
        else f" -> {end if isinstance(end, str) else getattr(end, '__name__', end)}"
    )
    return "(\n" + "\n".join(lines) + f"\n){arrow}"


def _plain(text: str) -> str:
    text = re.sub(r"'([^']*)'", lambda quoted: quoted[1] if _is_annotation(text, quoted) else f'"{quoted[1]}"', text)
    return ADDRESS.sub("", text).replace("radii.", "radius.")


def _is_annotation(text: str, quoted: re.Match[str]) -> bool:
    """Annotations are strings under `from __future__ import annotations`; defaults are strings by themselves."""
    return text[max(quoted.start() - 2, 0) : quoted.start()] == ": " or text[: quoted.start()].endswith("-> ")


def _words(thing: Any) -> str:
    doc = inspect.getdoc(thing)
    assert doc, f"{thing} has no docstring"
    return _markdown(doc) + "\n"


def _markdown(doc: str) -> str:
    """Doctests become fenced blocks; everything else is Markdown already."""
    lines, out, inside = doc.splitlines(), [], False
    for line in lines:
        if line.startswith(">>> ") and not inside:
            out.append("```pycon")
            inside = True
        elif inside and not line.strip():
            out.append("```")
            inside = False
        out.append(
            line if inside else line.replace("θ*", "θ\\*")
        )  # two stars would make the words between them oblique
    return "\n".join([*out, "```"] if inside else out)
