"""The pages of the Python API, one per area, from signatures, docstrings and the source."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import fedbandit
from fedbandit import sdk
from fedbandit.algorithms.base import BaseAgent, Scores
from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent, FedLinUCBServer
from fedbandit.algorithms.personal import PersonalAgent
from fedbandit.registry import Algorithm, Registry, RunSizes, option
from fedbandit.simulation.participation import PARTICIPATION
from fedbandit.simulation.worlds import WORLDS
from scripts.reference_errors import errors_of
from scripts.reference_parameters import MEANINGS

HEAD = """# Python API

<!-- Written by scripts/make_reference.py from the docstrings: `make docs` renews it, a test compares. -->

One page per area. Everything is `import fedbandit as fb`, then `fb.name`. Names that start with `_` and modules that
are not on these pages may change at any time.

| Area | Names |
|---|---|
"""
AREA = """# {title}

<!-- Written by scripts/make_reference.py from the docstrings: `make docs` renews it, a test compares. -->

"""
NOTE = """
The examples on these pages are doctests and run with the tests. *Errors* lists the classes of
[`fb.errors`](api/errors.md) that a call raises itself or through what it calls, as the source shows it; calls through
objects whose class the source does not show are not followed.
"""
ALGORITHM_CLASSES = tuple(dict.fromkeys(entry.class_name for entry in ALGORITHMS.own().values()))
SECTIONS: dict[str, tuple[str, ...]] = {
    "Algorithms": ALGORITHM_CLASSES,
    "Decisions and messages": ("Decision", "Upload", "Download", "Pull", "Poll", "Receipt"),
    "Live": ("connect", "aconnect", "slots", "LiveAgent"),
    "Features and decision sets": ("block_features", "arm_features", "HashingFeatures", "Ball"),
    "Statistics and models": ("SufficientStats", "RidgeModel", "load"),
    "Confidence radii": ("radius",),
    "Agents that differ": ("personal",),
    "Worlds that change": ("drift",),
    "Theory": ("theory",),
    "Simulation": ("simulate", "Trace", "worlds", "participation"),
    "Extending": ("testing",),
    "Errors": ("errors",),
}
BESIDES: dict[str, tuple[tuple[str, Any], ...]] = {
    "Algorithms": (
        ("An agent", BaseAgent),
        ("FedLinUCB's agent", FedLinUCBAgent),
        ("FedLinUCB's server", FedLinUCBServer),
        ("The agent of FedLinUCB with personal", PersonalAgent),
        ("Scores", Scores),
    ),
    "Extending": (
        ("fedbandit.registry.Algorithm", Algorithm),
        ("fedbandit.registry.option", option),
        ("fedbandit.registry.RunSizes", RunSizes),
    ),
    "Live": tuple(
        (f"fedbandit.sdk.{name}", getattr(sdk, name)) for name in sdk.__all__ if name not in fedbandit.__all__
    ),
}
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def pages() -> dict[str, str]:
    """The overview and one page per area, by their path without the ending."""
    listed = {name for names in SECTIONS.values() for name in names}
    public = {*fedbandit.__all__, *ALGORITHM_CLASSES}
    assert listed == public, listed ^ public
    made = {f"api/{_file(title)}": _area(title, names) for title, names in SECTIONS.items()}
    return {"api": _overview(), **made}


def described() -> Iterator[tuple[str, str, Any]]:
    """Every parameter and field on the pages: the name of its call, its own, and what is called."""
    for title, names in SECTIONS.items():
        things = [(f"fb.{name}", getattr(fedbandit, name)) for name in names]
        for shown, thing in (*things, *BESIDES.get(title, ())):
            for called, call in ((shown, thing), *_members(shown, thing)):
                yield from ((called, name, call) for name in _parameters(call))


def meaning(called: str, name: str, thing: Any = None) -> str:
    """What a parameter means: by its own field, else by the longest key of `MEANINGS` that fits."""
    if dataclasses.is_dataclass(thing):
        option = {f.name: f.metadata for f in dataclasses.fields(thing)}.get(name, {}).get("option")
        if option is not None and option.help:
            return str(option.help)
    parts = called.removeprefix("fb.").removeprefix("fedbandit.sdk.").replace("-", "_").split(".")
    keys = [".".join([*parts[i:], name]) for i in range(len(parts) + 1)]
    return next((MEANINGS[key] for key in keys if key in MEANINGS), "")


def _file(title: str) -> str:
    return title.lower().replace(" ", "-")


def _overview() -> str:
    rows = ""
    for title, names in SECTIONS.items():
        rows += f"| [{title}](api/{_file(title)}.md) | {', '.join(f'`fb.{name}`' for name in names)} |\n"
    return HEAD + rows + NOTE


def _area(title: str, names: tuple[str, ...]) -> str:
    parts = [_entry(f"fb.{name}", getattr(fedbandit, name)) for name in names]
    parts += [_entry(shown, thing) for shown, thing in BESIDES.get(title, ())]
    return AREA.format(title=title) + "".join(parts).lstrip("\n")


def _entry(shown: str, thing: Any) -> str:
    text = f"\n## {shown}\n\n"
    if isinstance(thing, ModuleType):
        text += _words(thing)
    elif inspect.isclass(thing):
        text += _call(shown, thing) if dataclasses.is_dataclass(thing) else _words(thing)
    else:
        return text + _call(shown, thing)
    for called, call in _members(shown, thing):
        text += f"\n### {called if isinstance(thing, ModuleType) else called.rpartition('.')[2]}\n\n"
        if isinstance(call, property):
            text += f"A property. {_words(call)}"
        else:
            text += _call(called, call, owner=thing if inspect.isclass(thing) else None)
    return text


def _members(shown: str, thing: Any) -> list[tuple[str, Any]]:
    """What a class or a module has for its users, by the name to call it by."""
    if isinstance(thing, ModuleType):
        registries: dict[str, Registry[Any]] = {"worlds": WORLDS, "participation": PARTICIPATION}
        registry = registries.get(shown.removeprefix("fb."))
        makers = registry.own() if registry is not None else {}
        found = {name.replace("-", "_"): maker for name, maker in makers.items()}
        found |= {n: f for n, f in vars(thing).items() if _is_of(thing, f) and _is_shown(shown, n)}
        return [(f"{shown}.{name}", call) for name, call in found.items()]
    if not inspect.isclass(thing):
        return []
    members = {
        name: member.__func__ if isinstance(member, classmethod | staticmethod) else member
        for name, member in vars(thing).items()
        if not name.startswith("_")
    }
    return [
        (f"{shown}.{name}", member)
        for name, member in members.items()
        if isinstance(member, FunctionType | property) and member.__doc__
    ]


def _is_of(module: ModuleType, thing: Any) -> bool:
    return isinstance(thing, FunctionType) and thing.__module__.startswith(module.__name__)


def _call(shown: str, thing: Any, owner: type | None = None) -> str:
    """Signature, words, parameters, what it returns and which errors it raises."""
    name = shown if owner is None else shown.rpartition(".")[2]
    text = _signature(name, thing) + _words(thing)
    rows = [(name, meaning(shown, name, thing)) for name in _parameters(thing)]
    if rows:
        text += f"\n| {'Field' if inspect.isclass(thing) else 'Parameter'} | Meaning |\n|---|---|\n"
        text += "".join(f"| `{name}` | {_markdown(words)} |\n" for name, words in rows)
    returns = "" if inspect.isclass(thing) else str(inspect.signature(thing).return_annotation)
    if returns not in ("", "None"):
        text += f"\n*Returns* `{_plain(returns)}`.\n"
    raised = errors_of(thing, owner)
    if raised:
        text += f"\n*Errors*: {', '.join(f'`{error}`' for error in raised)}.\n"
    return text


def _parameters(thing: Any) -> list[str]:
    if isinstance(thing, ModuleType | property) or (inspect.isclass(thing) and not dataclasses.is_dataclass(thing)):
        return []
    return [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]


def _is_shown(shown: str, name: str) -> bool:
    """Modules also hold helpers of the simulator; those that users call are listed."""
    users = {
        "fb.worlds": {"from_arrays", "real", "from_parquet"},
        "fb.participation": {"by_rows", "sequence", "episodes"},
        "fb.testing": {"check_algorithm"},
    }
    return not name.startswith("_") and name in users.get(shown, {name})


def _signature(shown: str, thing: Any) -> str:
    """The call as a block that wraps when it is long; `self` is left out."""
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
    return ADDRESS.sub("", text).replace("radii.", "radius.").replace("personals.", "personal.")


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
