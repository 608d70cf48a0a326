"""What documents and examples show can be repeated: no seed comes from Python's `hash`, which differs by process."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HASHED = re.compile(r"(default_rng|seed|SeedSequence)\w*\s*[=(].*(?<![\w.])hash\(")


def test_no_seed_comes_from_the_hash_of_a_name():
    assert HASHED.search("rng = np.random.default_rng(abs(hash(name)) % 1000)")
    files = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.py"), *ROOT.glob("src/**/*.py"), ROOT / "README.md"]
    found = {str(path.relative_to(ROOT)) for path in files if HASHED.search(path.read_text(encoding="utf-8"))}
    assert len(files) > 100
    assert found == set()
