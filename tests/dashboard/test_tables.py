"""What charts and tables show, as files: the same numbers, and nothing that a spreadsheet would run."""

import csv
import io

import pytest

from fedbandit.dashboard.tables import TABLES, TableFile


@pytest.fixture
def fed(dashboard):
    tokens = dashboard.fleet("a", "b")
    for sequence in range(1, 6):
        dashboard.now += 100.0
        assert dashboard.send(tokens["a"], "a", sequence).status_code == 200
        dashboard.portal.call(dashboard.container.history._flush)
    return dashboard


def rows(dashboard, file, **options):
    return dashboard.request("GET", f"/models/news/tables/{file}", **options).json()


@pytest.mark.parametrize("table", sorted(set(TABLES) - {"arms"}))
def test_every_table_is_the_same_as_csv_and_as_json(fed, table):
    as_json = rows(fed, f"{table}.json")
    answer = fed.request("GET", f"/models/news/tables/{table}.csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="news-{table}.csv"'
    as_csv = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(as_csv) == len(as_json)
    for one, other in zip(as_csv, as_json, strict=True):
        for name, value in other.items():
            assert one[name] == ("" if value is None else str(value)) or float(one[name]) == pytest.approx(value)


def test_numbers_are_those_of_the_api(fed):
    told = fed.call("GET", "/v1/models/news/insight")
    assert [row["value"] for row in rows(fed, "estimates.json")] == [item["value"] for item in told["estimates"]]
    shares = {row["agent"]: row["share"] for row in rows(fed, "shares.json")}
    assert shares["a"] == pytest.approx(told["largest_shares"][0]["share"]) and sum(shares.values()) == pytest.approx(1)
    model = fed.call("GET", "/v1/models/news")
    last = rows(fed, "exchanges.json")[-1]
    assert (last["n_uploads"], last["n_obs"], last["n_bytes"]) == (5, model["n_obs"], model["n_bytes"])


def test_a_time_range_keeps_what_a_chart_shows(fed):
    times = [row["at"] for row in rows(fed, "exchanges.json")]
    kept = [row["at"] for row in rows(fed, f"exchanges.json?since={times[1]}&until={times[3]}")]
    assert kept == times[1:4]
    for wrong in ("since=yesterday", "until=nan"):
        answer = fed.request("GET", f"/models/news/tables/exchanges.json?{wrong}")
        assert answer.status_code == 400


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", '=HYPERLINK("x")'])
def test_no_text_is_a_formula(text):
    written = next(csv.reader(io.StringIO(TableFile(("text", "n"), [(text, -1.5)]).to_csv().decode(), newline="")))
    assert written == ["text", "n"]
    *_, row = csv.reader(io.StringIO(TableFile(("text", "n"), [(text, -1.5)]).to_csv().decode(), newline=""))
    assert row == ["'" + text, "-1.5"]


def test_a_hostile_reason_reaches_the_file_as_text(fed):
    model = fed.portal.call(fed.container.store.load, "news")
    fed.container.history.event(model, "refused", "a", "=cmd|' /C calc'!A0")
    fed.portal.call(fed.container.history._flush)
    text = fed.request("GET", "/models/news/tables/events.csv").text
    assert ",'=cmd|" in text


def test_files_need_a_token_and_exist(fed):
    answer = fed.request("GET", "/models/news/tables/events.csv", token="")
    assert answer.status_code == 303 and answer.headers["location"].startswith("/login")
    for wrong in ("events.xml", "shoes.csv", "events", "arms.csv"):
        assert fed.request("GET", f"/models/news/tables/{wrong}").status_code in (400, 404)
    assert fed.request("GET", "/models/nowhere/tables/events.csv").status_code == 404


def test_every_table_of_the_views_exists(fed):
    import re

    for path in ("/models/news", "/models/news/agents", "/models/news/agents/a", "/models/news/events"):
        for address in set(re.findall(r'href="(/models/news/tables/[^"]+)"', fed.show(path))):
            assert fed.request("GET", address).status_code == 200, address
