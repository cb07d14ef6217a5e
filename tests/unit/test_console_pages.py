"""The console's pages: what they show, that data in them is text, and that nothing comes from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from console_client import HOSTILE, console_client, published_state
from fastapi.testclient import TestClient
from grown_history import GrownHistory
from ledgered_stream import Stream
from plan_samples import NOON, advanced, plan_at
from small_warehouse import SmallWarehouse, bronze_row, rejected_row, silver_row

from include.audit.run import AuditOutcome, outcome_file
from include.declare.column_lineage import dataset_columns
from include.declare.contract_rules import RuleResult
from include.declare.dataset import snapshot_dataset
from include.ground.settings import Settings
from include.observe.stream_history import StoredValidation, store_validation
from include.plans.comparison import Comparison, Sample, TableComparison
from include.plans.dependants import Effect
from include.plans.journal import save_comparison
from include.plans.plan import Stage

PAGES = [
    *("/", "/?range=day", "/?range=nonsense", "/plans", "/tables", "/lineage", "/storage", "/sql", "/log-in"),
    *("/datasets/flights", "/datasets/weather", "/datasets/weather_delays", "/datasets/flights?range=month"),
    *("/datasets/flights/runs", "/datasets/flights/quality", "/datasets/flights/contract"),
    *("/datasets/weather_delays/quality", "/datasets/weather_delays/contract"),
    *("/tables/silver.sales", "/tables/rejected.sales", "/tables/bronze.sales", "/sql?q=select+1+as+one"),
]
FOREIGN = re.compile(r'(?:src|href|action)="(?:https?:)?//|\sstyle="|\son\w+="|<script(?! src="/static/)|<style')


@pytest.fixture
def stream(settings: Settings) -> Stream:
    return published_state(settings)


@pytest.fixture
def client(settings: Settings, stream: Stream) -> Iterator[TestClient]:
    with console_client(settings) as found:
        yield found


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of one console, which only reads."""
    settings = Settings(state=tmp_path_factory.mktemp("pages") / "a state")
    published_state(settings)
    with console_client(settings) as found:
        yield found


@pytest.mark.parametrize("path", PAGES)
def test_page_is_shown_and_loads_nothing_from_elsewhere(reader: TestClient, path: str) -> None:
    answer = reader.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert FOREIGN.findall(answer.text) == []
    assert "'unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.text.count("<h1>") == 1
    assert 'class="skip"' in answer.text


def test_overview_shows_the_stream_and_its_figures(reader: TestClient) -> None:
    text = reader.get("/").text
    assert '<a href="/datasets/flights">flights</a>' in text
    assert "Records published, per second" in text
    assert "not audited yet" in text
    assert "Not known" in text, "there is no broker, and the page says so"


def test_dataset_shows_counts_by_layer_and_reasons(reader: TestClient) -> None:
    text = reader.get("/datasets/flights").text
    assert "<b>60</b>" in text, "rows of bronze"
    assert "<b>51</b>" in text, "rows of silver"
    assert re.search(r'reason=duplicate">duplicate</a></th><td class="number">3</td>', text)


@pytest.mark.parametrize(
    ("detail", "shown"),
    [("7/1/40851", "the first one is partition 1, offset 40,851, batch 7"), ("seen before", "seen before")],
)
def test_duplicate_names_the_place_of_the_record_that_counts(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, detail: str, shown: str
) -> None:
    reasons = [{"rule": "duplicate", "column": "event_id", "detail": detail}]
    warehouse = SmallWarehouse(settings)
    warehouse.write("bronze", [bronze_row(0, b"{}"), bronze_row(1, b"{}")])
    warehouse.write("silver", [silver_row(0, "a")])
    warehouse.write("rejected", [rejected_row(1, "duplicate", reasons=reasons)])
    warehouse.move(offsets={0: 2})
    monkeypatch.setattr("include.serve.datasets.progress_of", lambda *_: None)
    with console_client(settings) as client:
        assert f"<li>duplicate · event_id · {shown}</li>" in client.get("/datasets/sales/rejected").text


def test_runs_are_paged_by_batch(client: TestClient, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.serve.datasets.RUNS_SHOWN", 2)
    newest = client.get("/datasets/flights/runs").text
    assert re.findall(r'<th scope="row">(\d+)</th>', newest) == ["2", "1"]
    older = re.search(r'href="(/datasets/flights/runs\?release=\w+&amp;before=1)"', newest)
    assert older is not None
    assert "Newer runs" not in newest
    last = client.get(older[1].replace("&amp;", "&")).text
    assert re.findall(r'<th scope="row">(\d+)</th>', last) == ["0"]
    assert "Older runs" not in last
    back = re.search(r'href="([^"]+)">Newer runs', last)
    assert back is not None
    assert re.findall(r'<th scope="row">(\d+)</th>', client.get(back[1].replace("&amp;", "&")).text) == ["2", "1"]


@pytest.mark.parametrize(
    "path", ["/datasets/sales/rejected", "/tables/silver.sales", "/sql?q=select+*+from+silver.sales"]
)
def test_markup_in_data_is_text(client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "rejected" in path:
        monkeypatch.setattr("include.serve.datasets.progress_of", lambda *_: None)
    text = client.get(path).text
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(" in text


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/datasets/nope", 404, "is unknown"),
        ("/datasets/..%2f..", 404, "page does not exist"),
        ("/tables/gold.nope", 404, "is unknown"),
        ("/plans/release-flights-9", 404, "is unknown"),
        ("/plans/%3Cb%3E", 404, "&lt;b&gt;"),
        ("/nope", 404, "page does not exist"),
        ("/datasets/flights/runs?before=x", 422, "is not a value of before"),
        ("/live/datasets/nope", 404, "is unknown"),
        ("/sql?q=drop+table+x", 400, "was refused"),
        ("/sql?q=select+*+from+nope", 400, "does not exist"),
        ("/static/../console.py", 404, "page does not exist"),
        ("/static/%2e%2e/console.py", 404, "page does not exist"),
    ],
)
def test_wrong_address_is_explained(reader: TestClient, path: str, status: int, word: str) -> None:
    answer = reader.get(path)
    assert (answer.status_code, word in answer.text) == (status, True), answer.text[-600:]


def test_other_name_of_the_server_is_refused(reader: TestClient) -> None:
    """A page of another site whose name leads here (DNS rebinding) must not read anything."""
    assert reader.get("/", headers={"host": "evil.example"}).status_code == 421
    assert reader.get("/", headers={"host": "127.0.0.1:8080"}).status_code == 200


def test_plan_shows_stages_with_their_authors(settings: Settings, client: TestClient) -> None:
    plan_at(settings, Stage.BUILT, Stage.COMPARED)
    text = client.get("/plans").text
    assert '<a href="/plans/release-flights-1">release-flights-1</a>' in text
    page = client.get("/plans/release-flights-1").text
    assert page.count("badge good") >= 2
    assert "by ann" in page
    assert "<button" not in page, "nobody is logged in, so nothing can be decided"


def test_rejected_records_are_shown_over_time_by_reason(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.serve.datasets.rejected_samples", lambda *_: [])
    text = client.get("/datasets/flights/rejected?reason=type&range=month").text
    assert "Rejected by type" in text
    assert '<a href="/datasets/flights/rejected?reason=type&amp;range=month" aria-current="true">' in text
    assert '<a href="/datasets/flights/rejected?reason=type&amp;range=day">day</a>' in text
    assert re.search(r"</i>type <b>6</b>", text), "two in each of three batches"
    assert "Rejected records by reason" in client.get("/datasets/flights/rejected").text


def test_rule_of_records_leads_to_its_samples(reader: TestClient) -> None:
    text = reader.get("/datasets/flights/quality?range=month").text
    assert re.search(r'6 records rejected: <a href="/datasets/flights/rejected\?reason=type">samples</a>', text)
    assert "3 records warned" in text


def test_derived_dataset_has_its_tables_quality_and_rules_and_no_records(reader: TestClient) -> None:
    pages = [reader.get(f"/datasets/weather_delays{path}").text for path in ("", "/quality", "/contract")]
    for text, current in zip(pages, ("Tables", "Quality", "Contract"), strict=True):
        assert re.search(f'aria-current="page">{current}</a>', text), current
        assert "/datasets/weather_delays/runs" not in text
    assert "Rules of records" not in pages[1]
    assert "Fields of a record" not in pages[2]
    assert "<td>departures, delayed</td><td>or_equal: true</td>" in pages[2], "columns are named once"


def test_table_shows_what_each_column_is_computed_from(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot_dataset(settings, "flights")
    GrownHistory(settings).add_batch()
    computed = Mock(side_effect=dataset_columns)
    monkeypatch.setattr("include.serve.tables.dataset_columns", computed)
    with console_client(settings) as client:
        texts = [client.get("/tables/silver.flights").text for _ in range(2)]
    assert (computed.call_count, texts[0]) == (1, texts[1]), "columns of a version are computed once"
    text = texts[0]
    cells = "<code>string</code></td><td>bronze.flights.value.event_id (transformation)</td><td>event_id</td>"
    assert f'<th scope="row">event_id</th><td>{cells}' in text
    assert "headrace explain" not in text, "which is about rows of gold"


def test_live_part_is_sent_as_an_event(client: TestClient) -> None:
    from include.serve.datasets import dataset_part, progress_of
    from include.serve.observer import RANGES
    from include.serve.pages import part

    observer = client.app.state.console.observer  # type: ignore[attr-defined]
    template, shown = dataset_part(observer, progress_of(observer.snapshot(), "flights"), RANGES["hour"])
    assert '<h2 id="journey">' in part(template, **shown)


def test_plan_shows_changed_columns_before_and_after(settings: Settings, client: TestClient) -> None:
    plan_at(settings, Stage.BUILT, Stage.COMPARED)
    row = {"carrier": "EV", "delayed": 7, "note": HOSTILE}
    sample = Sample({"carrier": "EV"}, [row], [row | {"delayed": 3}])
    table = TableComparison(
        "gold.carrier_hours", "both", ("carrier",), 9, 9, 9, changed=1, samples={"changed": [sample]}
    )
    save_comparison(settings, "release-flights-1", Comparison("flights", "aaa", "bbb", 3, 0.0, [table]), "")
    text = client.get("/plans/release-flights-1").text
    assert re.search(r'<td class="rows old">delayed=7</td>\s*<td class="rows new">delayed=3</td>', text)
    assert "1 keys changed, the first 1" in text
    assert "needs approval" in text


def test_plan_that_a_reader_holds_says_what_leads_on_while_it_is_open(settings: Settings, client: TestClient) -> None:
    record = plan_at(settings, Stage.BUILT, Stage.COMPARED)
    effects = [Effect("delays", "d1", True, ("gold/delays.sql:2 reads tail",))]
    held = Comparison("flights", "aaa", "bbb", 3, 0.0, [], dependants=effects)
    save_comparison(settings, record.plan.id, held, "")
    text = client.get(f"/plans/{record.plan.id}").text
    assert "delays breaks: gold/delays.sql:2 reads tail" in text
    assert "headrace release run --dataset flights --with delays" in text
    advanced(settings, record, Stage.CANCELLED)
    assert "--with delays" not in client.get(f"/plans/{record.plan.id}").text


def test_quality_shows_each_validation(settings: Settings, client: TestClient) -> None:
    for number, passed in enumerate((True, False)):
        check = RuleResult("gold.route_days", "few_rows", "expect_x", "hold", "critical", passed, f"{number} rows")
        store_validation(settings, "flights", StoredValidation("aaa", number, NOON, [check]))
    text = client.get("/datasets/flights/quality").text
    assert [each in text for each in ("few_rows", ">passed</span>", ">failed</span>", "1 rows")] == [True] * 4


def test_last_audit_is_shown_with_its_first_finding(settings: Settings, client: TestClient) -> None:
    outcome = AuditOutcome("flights", NOON, "aaa", 2, False, 3, 0, "gold.route_days: 1 row differs")
    outcome_file(settings, "flights").write(outcome)
    client.app.state.console.observer.observe()  # type: ignore[attr-defined]
    text = client.get("/").text
    assert "not balanced," in text
    assert "gold.route_days: 1 row differs" in text
