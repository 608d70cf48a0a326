"""The page about studies: its example runs, and it names what exists."""

import re
from pathlib import Path

from fedbandit.experiments.output.figures import in_style
from fedbandit.experiments.studies import STUDIES
from fedbandit.experiments.study import Size, read_results
from fedbandit.experiments.study_runner import conduct

PAGE = Path(__file__).resolve().parents[2] / "docs" / "studies.md"


def test_the_example_is_a_study_that_runs(tmp_path):
    (example,) = [
        code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL) if "STUDY =" in code
    ]
    names: dict = {}
    exec(compile(example, str(PAGE), "exec"), names)
    study = names["STUDY"]
    assert conduct([study], Size("tiny"), tmp_path, n_jobs=2).failures == ()
    with in_style():
        answer = study.analyse(read_results(tmp_path, study.name))
    assert answer.sentence.startswith("Best is λ = ")


def test_every_study_is_explained():
    text = PAGE.read_text("utf-8")
    ours = [name for name in STUDIES if name != "real"]
    assert [name for name in ours if f"`{name}`" not in text] == []
    for figure in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (PAGE.parent / figure).is_file(), figure
