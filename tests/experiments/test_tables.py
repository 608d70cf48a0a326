import csv
import io

from fedbandit.experiments.compare import Interval
from fedbandit.experiments.output.tables import Table, around, span, tidy
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.run_store import RunStore
from fedbandit.experiments.sweep import sweep
from tests.experiments.specs import make_small_spec


def test_a_table_is_escaped_in_html_and_wide_in_csv():
    table = Table("a < b", ["name", "value"], [["<x>", Interval(2.0, 1.0, 3.0, 4)], ["y", 7]])
    html = table.to_html()
    assert "&lt;x&gt;" in html
    assert "<x>" not in html
    rows = list(csv.reader(io.StringIO(table.to_csv())))
    assert rows == [["name", "value", "value low", "value high"], ["<x>", "2.0", "1.0", "3.0"], ["y", "7", "", ""]]


def test_numbers_have_the_digits_they_deserve():
    assert around(Interval(92.213, 88.0, 96.4, 20)) == "92.2 ± 4.2"
    assert around(Interval(12345.0, 12000.0, 12690.0, 5)) == "12\u202f345 ± 345"
    assert span(Interval(0.47, 0.451, 0.489, 9)) == "0.47 [0.45, 0.49]"


def test_the_tidy_table_has_every_measure_of_every_group(tmp_path):
    spec = make_small_spec()
    cell = Cell({"alpha": 1.0}, spec, (0, 1, 2))
    store = RunStore(tmp_path)
    sweep(store, [(spec, seed) for seed in cell.seeds], n_jobs=2)
    results = Results([Group(cell, [store.load(spec, seed) for seed in cell.seeds])])
    table = tidy(results)
    by_measure = {row[2]: row for row in table.rows}
    assert set(by_measure) == {"regret", "messages", "switches", "bytes"}
    sent = by_measure["messages"][3]
    assert sent.n == 3
    assert by_measure["switches"][3].mean * 2 == sent.mean  # an exchange is two messages and one switch
