"""Who may import whom, read from the source text without running it.

    core <- algorithms <- simulation <- experiments
                       <- wire       <- service  <- dashboard
                                     <- sdk      <- integrations

The command line stands on top. An arrow points at what is imported.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PACKAGE = "fedbandit"
FACADE = "__init__"  # the package itself, with the public names

# Single modules that any layer may import; they import errors only (`http_client` its connection, too).
LEAVES = frozenset(
    {"errors", "durable_files", "http_client", "http_connection", "pauses", "registry", "wire.identifiers"}
)

# Layer -> what it may import besides itself and the leaves.
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(LEAVES, frozenset()),
    "http_client": frozenset({"http_connection"}),
    "core": frozenset(),
    "algorithms": frozenset({"core"}),
    "simulation": frozenset({"core", "algorithms"}),
    "experiments": frozenset({"core", "algorithms", "simulation"}),
    "wire": frozenset({"core", "algorithms"}),
    "service": frozenset({"core", "algorithms", "wire"}),
    "dashboard": frozenset({"core", "algorithms", "wire", "service"}),
    "sdk": frozenset({"core", "algorithms", "wire"}),
    "integrations": frozenset({"core", "algorithms", "wire", "sdk"}),
    "testing": frozenset({"core", "algorithms", "simulation"}),
    FACADE: frozenset({"core", "algorithms", "simulation", "sdk", "testing"}),
}
TOP_LAYERS = frozenset({"cli", "demo", "__main__"})  # may import everything; nobody else imports them

BASE_LAYERS = frozenset({FACADE, "core", "algorithms", "wire", "sdk", "simulation", "testing"}) | LEAVES
BASE_PACKAGES = frozenset({"numpy", "msgspec", "urllib3"})
NEEDS_AN_EXTRA = f"{PACKAGE}.simulation.compiled"  # numba


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, e.g. `fedbandit.core.ridge`."""

    target: str
    line: int
    when_loaded: bool  # not inside a function, nor for the type checker only

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


def imports_of(module: str, source: str, *, is_package: bool = False) -> list[Import]:
    """Every import in `source`, wherever it stands, with relative ones made absolute.

    >>> [found.target for found in imports_of("fedbandit.core.ridge", "from ..errors import FedbanditError")]
    ['fedbandit.errors.FedbanditError']
    """
    package = module if is_package else module.rpartition(".")[0]
    return list(_walk(ast.parse(source), package, when_loaded=True))


def _walk(node: ast.AST, package: str, *, when_loaded: bool) -> Iterator[Import]:
    for target in _targets(node, package):
        yield Import(target, getattr(node, "lineno", 0), when_loaded)
    if isinstance(node, ast.If) and _asks_for_type_checking(node.test):
        for child in node.body:
            yield from _walk(child, package, when_loaded=False)
        for child in node.orelse:
            yield from _walk(child, package, when_loaded=when_loaded)
        return
    inside = when_loaded and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, package, when_loaded=inside)


def _targets(node: ast.AST, package: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
            origin = ".".join([*parents, *([module] if module else [])])
            return [f"{origin}.{alias.name}" for alias in names]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(target)), *_]):
            return [target] if name in {"import_module", "__import__"} and not target.startswith(".") else []
    return []


def _asks_for_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def layer_of(name: str) -> str:
    """The layer of a dotted name of ours; names that the package itself defines belong to the facade."""
    _, _, rest = name.partition(".")
    for leaf in LEAVES:
        if _is_within(rest, leaf):
            return leaf
    first = rest.partition(".")[0]
    known = MAY_IMPORT.keys() | TOP_LAYERS
    return first if first in known else FACADE


def violations(sources: Mapping[str, str], packages: frozenset[str] = frozenset()) -> list[str]:
    """What is wrong in `sources` (module name -> text); `packages` are those read from an `__init__.py`."""
    found = []
    for module, source in sorted(sources.items()):
        if module != PACKAGE and layer_of(module) == FACADE:
            found.append(f"{module}: has no layer; give it a place in tests/import_rules.py")
            continue
        for item in imports_of(module, source, is_package=module in packages):
            problem = _problem(module, item)
            if problem:
                found.append(f"{module}:{item.line}: {problem}")
    return found


def _problem(module: str, item: Import) -> str | None:
    if item.top == PACKAGE:
        return _problem_inside(module, item)
    if item.top in sys.stdlib_module_names:
        return None
    layer = layer_of(module)
    if layer == "core" and item.top != "numpy":
        return f"core knows NumPy and the standard library only, not {item.target}"
    if _is_base(module) and item.when_loaded and item.top not in BASE_PACKAGES:
        return f"{item.target} is not in the base install; import it inside the function that needs it"
    return None


def _problem_inside(module: str, item: Import) -> str | None:
    layer, wanted = layer_of(module), layer_of(item.target)
    if layer in TOP_LAYERS:
        return None
    if wanted not in MAY_IMPORT[layer] | {layer} | (LEAVES if layer not in LEAVES else {"errors"}):
        return f"{layer} must not import {wanted} ({item.target})"
    if _is_base(module) and item.when_loaded and _is_within(item.target, NEEDS_AN_EXTRA):
        return f"{NEEDS_AN_EXTRA} needs an extra; import it inside the function that needs it"
    return None


def _is_base(module: str) -> bool:
    return layer_of(module) in BASE_LAYERS and not _is_within(module, NEEDS_AN_EXTRA)


def _is_within(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")
