"""The errors that a call can raise, read from the source: its own `raise` statements and those of what it calls."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

from fedbandit.errors import FedbanditError


def errors_of(thing: Any, owner: type | None = None) -> list[str]:
    """Names of fedbandit's errors that calling `thing` can raise, in the order of the alphabet.

    Calls through an attribute of unknown type are not followed, and an error that is caught on the way is left out.
    """
    found: set[type[BaseException]] = set()
    _Reader(found, set()).call(thing, owner)
    return sorted(error.__name__ for error in found)


class _Reader:
    """Follows calls from one function to the next, each once."""

    def __init__(self, found: set[type[BaseException]], seen: set[Any]) -> None:
        self.found = found
        self.seen = seen

    def call(self, thing: Any, owner: type | None) -> None:
        if inspect.isclass(thing):
            for name in ("__new__", "__init__", "__post_init__"):
                self.call(inspect.getattr_static(thing, name, None), thing)
            return
        thing = getattr(thing, "__func__", thing)
        thing = thing.fget if isinstance(thing, property) else inspect.unwrap(thing) if callable(thing) else thing
        if not isinstance(thing, FunctionType) or not thing.__module__.startswith("fedbandit"):
            return
        if (thing, owner) in self.seen:
            return
        self.seen.add((thing, owner))
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
        except (OSError, SyntaxError):  # made by dataclass, without source
            return
        body = tree.body[0]
        assert isinstance(body, ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign | ast.Expr)
        names = _Names(thing, owner, tree)
        self.nodes(getattr(body, "body", [body]), names)

    def nodes(self, nodes: Iterable[ast.AST], names: _Names) -> None:
        for node in nodes:
            self.node(node, names)

    def node(self, node: ast.AST, names: _Names) -> None:
        if isinstance(node, ast.Try):
            inside = _Reader(set(), self.seen)
            inside.nodes(node.body, names)
            caught = tuple(kind for handler in node.handlers for kind in names.classes(handler.type))
            self.found |= {error for error in inside.found if not issubclass(error, caught)}
            self.nodes([*node.handlers, *node.orelse, *node.finalbody], names)
            return
        if isinstance(node, ast.Raise) and node.exc is not None:
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            self.found.update(kind for kind in names.errors(made) if issubclass(kind, FedbanditError))
        if isinstance(node, ast.Call):
            self.call(*names.callee(node.func))
        elif isinstance(node, ast.Attribute) and names.is_self(node.value):
            member = inspect.getattr_static(names.owner, node.attr, None)
            if isinstance(member, property):
                self.call(member, names.owner)
        self.nodes(ast.iter_child_nodes(node), names)


class _Names:
    """What names mean inside one function."""

    def __init__(self, function: FunctionType, owner: type | None, tree: ast.AST) -> None:
        self.owner = owner
        self._function = function
        self._tree = tree

    @cached_property
    def known(self) -> Mapping[str, Any]:
        """Builtins, globals, and what the function imports itself."""
        names = {**vars(builtins), **self._function.__globals__}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedbandit"):
                module = importlib.import_module(node.module)
                names |= {alias.asname or alias.name: getattr(module, alias.name, None) for alias in node.names}
        return names

    def is_self(self, node: ast.AST) -> bool:
        return self.owner is not None and isinstance(node, ast.Name) and node.id in ("self", "cls")

    def value(self, node: ast.AST | None) -> Any:
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.value(node.value)
            return getattr(base, node.attr, None) if isinstance(base, ModuleType | type) else None
        return None

    def classes(self, node: ast.AST | None) -> list[type[BaseException]]:
        """The exceptions that a handler catches."""
        if node is None:
            return [BaseException]
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        return [kind for part in parts if inspect.isclass(kind := self.value(part))]

    def errors(self, node: ast.AST) -> list[type[BaseException]]:
        """The class that is raised; of a function that makes an error, the class in its annotation."""
        made = self.callee(node)[0]
        if isinstance(made, FunctionType):
            made = made.__globals__.get(str(made.__annotations__.get("return")))
        return [made] if inspect.isclass(made) and issubclass(made, BaseException) else []

    def callee(self, node: ast.AST) -> tuple[Any, type | None]:
        if isinstance(node, ast.Attribute):
            if self.is_self(node.value):
                return inspect.getattr_static(self.owner, node.attr, None), self.owner
            if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super" and self.owner:
                return self._inherited(node.attr), self.owner
            if isinstance(node.value, ast.Attribute) and self.is_self(node.value.value):
                kind = self._kind_of(node.value.attr)
                return inspect.getattr_static(kind, node.attr, None), kind
            base = self.value(node.value)
            return self.value(node), base if inspect.isclass(base) else None
        return self.value(node), None

    def _inherited(self, name: str) -> Any:
        """What `super().name` is: the next definition after the class that defines this function."""
        assert self.owner is not None
        line = self.owner.__mro__
        holds = [getattr(vars(kind).get(self._function.__name__), "__code__", None) for kind in line]
        here = holds.index(self._function.__code__) if self._function.__code__ in holds else 0
        return next((vars(kind)[name] for kind in line[here + 1 :] if name in vars(kind)), None)

    def _kind_of(self, attribute: str) -> Any:
        """The class of `self.attribute`, as `__init__` annotates or makes it; None where that cannot be seen."""
        for kind in self.owner.__mro__ if self.owner else ():
            made = vars(kind).get("__init__")
            if not isinstance(made, FunctionType) or not made.__module__.startswith("fedbandit"):
                continue
            try:
                tree = ast.parse(textwrap.dedent(inspect.getsource(made)))
            except OSError:  # made by dataclass
                continue
            names = _Names(made, kind, tree)
            for node in ast.walk(tree):
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                if any(isinstance(t, ast.Attribute) and t.attr == attribute for t in targets):
                    return names.kind(node)
        return None

    def kind(self, node: ast.AST) -> Any:
        """The class that an assignment gives to its target."""
        said = getattr(node, "annotation", None)
        value = getattr(node, "value", None)
        if said is None and isinstance(value, ast.Name):
            arguments = [arg for arg in ast.walk(self._tree) if isinstance(arg, ast.arg) and arg.arg == value.id]
            said = arguments[0].annotation if arguments else None
        found = self.value(said) if said is not None else self.value(getattr(value, "func", None))
        return found if inspect.isclass(found) else None
