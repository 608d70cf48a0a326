"""The shape of the repository: import directions, base install, public names, module sizes, clean files."""

import inspect
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedbandit
from tests.import_rules import PACKAGE, violations

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
MAX_LINES = 600  # a module ends where its idea ends; this long it has surely more than one

# The brackets keep these patterns from finding themselves.
REGISTRY = re.compile(r"pypi[.]org|pythonhosted[.]org|npmjs[.]|anaconda[.]org|index[-_]url|find[-]links", re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w.~-])(?:/(?:home|Users)/\w|/(?:root|work|workspace)[/]|[A-Z]:\\+Users\\)")
PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.!]*")


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source_files() -> list[Path]:
    return sorted((SOURCE / PACKAGE).rglob("*.py"))


def repository_files() -> list[Path]:
    """What is or could be committed; without git, all files outside of hidden and cache folders."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        output = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        paths = [ROOT / name for name in output.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        skipped = {".git", ".venv", "__pycache__", "build", "dist"}
        paths = [path for path in ROOT.rglob("*") if not skipped & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in paths if path.is_file())


def forbidden_text(text: str) -> list[str]:
    return [found.group() for pattern in (REGISTRY, MACHINE_PATH) for found in pattern.finditer(text)]


def lacks_docstring(name: str, thing: Any) -> bool:
    """Whether a public class, function or module has no words of its own; plain values need none."""
    if not (inspect.isclass(thing) or callable(thing) or isinstance(thing, ModuleType)):
        return False
    doc = inspect.cleandoc(thing.__doc__ or "")
    return not doc or doc.startswith(f"{name}(")  # a dataclass writes its signature where words are missing


def test_imports_follow_the_layers_and_the_base_install_stays_small():
    files = source_files()
    assert files, "no source found: this test would pass on nothing"
    sources = {module_name(path): path.read_text(encoding="utf-8") for path in files}
    packages = frozenset(module_name(path) for path in files if path.name == "__init__.py")
    assert violations(sources, packages) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fedbandit.core.ridge", "from fedbandit.algorithms import oful"),
        ("fedbandit.core.ridge", "from ..algorithms.oful import OFUL"),
        ("fedbandit.core.ridge", "from .. import algorithms"),
        ("fedbandit.core.ridge", "import msgspec"),
        ("fedbandit.core.ridge", "def f():\n    import scipy.linalg"),
        ("fedbandit.algorithms.oful", "def f():\n    from fedbandit.simulation import runner"),
        ("fedbandit.algorithms.oful", "import importlib\nimportlib.import_module('fedbandit.wire.codec')"),
        ("fedbandit.algorithms.oful", "import fedbandit as fb"),
        ("fedbandit.algorithms.oful", "from fedbandit import OFUL"),
        ("fedbandit.simulation.runner", "try:\n    import numba\nexcept ImportError:\n    numba = None"),
        ("fedbandit.simulation.runner", "from fedbandit.simulation import compiled"),
        ("fedbandit.simulation.runner", "from .compiled import run"),
        ("fedbandit.simulation.runner", "import fedbandit.wire"),
        ("fedbandit.experiments.sweep", "from fedbandit.service import app"),
        ("fedbandit.wire.codec", "from fedbandit.sdk import agent"),
        ("fedbandit.sdk.agent", "from fedbandit.service import coordinator"),
        ("fedbandit.sdk.agent", "import requests"),
        ("fedbandit.service.app", "from fedbandit.dashboard import page"),
        ("fedbandit.service.app", "from fedbandit.cli import main"),
        ("fedbandit.errors", "from fedbandit.core import ridge"),
        ("fedbandit", "from fedbandit.service import app"),
        ("fedbandit", "import pandas"),
        ("fedbandit.utils", ""),
    ],
)
def test_a_planted_violation_is_found(module, source):
    assert len(violations({module: source}, frozenset({"fedbandit"}))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "fedbandit.core.ridge",
            "import math\nimport numpy as np\nfrom fedbandit.errors import FedbanditError",
        ),
        ("fedbandit.core.ridge", "from .statistics import SufficientStats"),
        ("fedbandit.simulation.runner", "def f():\n    from fedbandit.simulation.compiled import run"),
        (
            "fedbandit.simulation.runner",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas",
        ),
        ("fedbandit.simulation.compiled", "import numba\nfrom fedbandit.core import ridge"),
        ("fedbandit.sdk.agent", "import msgspec, urllib3\nfrom fedbandit.wire.codec import decode"),
        ("fedbandit.dashboard.page", "import plotly\nfrom fedbandit.service import app"),
        ("fedbandit.cli.main", "import typer\nimport fedbandit as fb\nfrom fedbandit.service import app"),
        (
            "fedbandit",
            "from .core import ridge\ndef __getattr__(name):\n    from fedbandit.sdk import connect",
        ),
    ],
)
def test_a_rightful_import_is_left_alone(module, source):
    assert violations({module: source}, frozenset({"fedbandit"})) == []


def test_importing_the_package_loads_no_optional_library():
    optional = {
        "fastapi",
        "joblib",
        "matplotlib",
        "numba",
        "pandas",
        "pyarrow",
        "rich",
        "scipy",
        "sklearn",
        "typer",
    }
    program = "import sys, fedbandit; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert optional & set(finished.stdout.split()) == set()


@pytest.mark.parametrize("name", fedbandit.__all__)
def test_every_public_name_exists_and_is_explained(name):
    assert not lacks_docstring(name, getattr(fedbandit, name))


def test_a_missing_docstring_is_found():
    @dataclass
    class Wordless:
        number: int

    assert lacks_docstring("Wordless", Wordless)
    assert lacks_docstring("f", lambda: None)
    assert not lacks_docstring("__version__", "0.1.0")
    assert not lacks_docstring("lacks_docstring", lacks_docstring)


def test_source_modules_stay_short():
    lengths = {path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in source_files()}
    assert {path: n_lines for path, n_lines in lengths.items() if n_lines >= MAX_LINES} == {}


def test_no_file_names_a_registry_or_a_path_of_some_machine():
    found = {}
    for path in repository_files():
        try:
            hits = forbidden_text(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # an image or other binary file
        if hits:
            found[str(path.relative_to(ROOT))] = hits
    assert found == {}


@pytest.mark.parametrize(
    "parts",
    [
        ("https://pypi", ".org/simple"),
        ("https://files.python", "hosted.org/x.whl"),
        ("pip install --index", "-url x"),
        ("cd /ho", "me/ada/fedbandit"),
        ("'/ro", "ot/.cache'"),
        ("(/Us", "ers/ada)"),
        ("C:\\Us", "ers\\ada"),
    ],
)
def test_a_planted_address_or_path_is_found(parts):
    assert forbidden_text("".join(parts))


def test_constraints_are_pins_and_there_is_no_lock_file_with_addresses():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [line for line in pins if not PIN.fullmatch(line)] == []
    assert "uv.lock" not in {path.name for path in repository_files()}


def test_every_test_folder_is_a_package():
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_fast_tests_start_no_server_and_no_browser():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = re.search(r"^FAST_TESTS := (.*)$", makefile, re.MULTILINE)
    assert listed is not None
    patterns = re.sub(r"\$\(wildcard ([^)]*)\)", r"\1", listed[1]).split()
    files = [path for pattern in patterns for found in ROOT.glob(pattern) for path in [found, *found.rglob("*.py")]]
    sources = {path: path.read_text(encoding="utf-8") for path in files if path.suffix == ".py"}
    assert len(sources) > 20
    starts = re.compile(r"tests\.(live|postgres|browser|chaos)\b|playwright|uvicorn|service\.process")
    assert [path.name for path, source in sources.items() if starts.search(source)] == []
