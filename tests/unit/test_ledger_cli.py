"""`headrace ledger`: its output, and a rebuild during a running driver."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing

import pytest
from ledgered_stream import Stream
from typer.testing import CliRunner

from include.cli.main import app
from include.declare.dataset import DatasetUnknown
from include.ground.errors import Transient
from include.ground.settings import Settings, load_settings
from include.observe.ledger_reader import open_reader
from include.observe.ledger_writer import open_writer, project_dataset, rebuild


@pytest.fixture
def headrace(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """The command line on the test's state folder, in a wide terminal."""
    monkeypatch.setenv("HEADRACE_STATE", str(settings.state))
    monkeypatch.setenv("COLUMNS", "160")
    load_settings.cache_clear()
    return CliRunner()


@pytest.fixture
def stream(settings: Settings) -> Stream:
    """Three batches of flights, entered."""
    found = Stream(settings)
    found.run(0, 2)
    project_dataset(open_writer(settings), settings, "flights")
    return found


def test_show_prints_half_open_ranges(stream: Stream, headrace: CliRunner) -> None:
    result = headrace.invoke(app, ["ledger", "show", "--last", "1"])
    assert result.exit_code == 0
    assert "0: [22, 33) 10" in result.output
    assert "[11, 22)" not in result.output


def test_show_prints_batches_as_json(stream: Stream, headrace: CliRunner) -> None:
    result = headrace.invoke(app, ["ledger", "show", "--dataset", "flights", "--last", "2", "--json"])
    batches = json.loads(result.stdout)
    assert [batch["batch"] for batch in batches] == [1, 2]
    assert batches[1]["ranges"][1] == {"partition": 1, "start": 22, "end": 33, "rows": 10}


def test_show_refuses_an_unknown_dataset_and_a_missing_ledger(headrace: CliRunner) -> None:
    assert isinstance(headrace.invoke(app, ["ledger", "show", "--dataset", "x"]).exception, DatasetUnknown)
    missing = headrace.invoke(app, ["ledger", "show"]).exception
    assert isinstance(missing, Transient)
    assert missing.code == "ledger-missing"


def test_rebuild_prints_identical_or_different(stream: Stream, headrace: CliRunner, settings: Settings) -> None:
    assert "identical" in headrace.invoke(app, ["ledger", "rebuild"]).output
    with closing(sqlite3.connect(settings.state / "ledger.sqlite", isolation_level=None)) as raw:
        raw.execute("delete from gold_commits")
    result = headrace.invoke(app, ["ledger", "rebuild"])
    assert (result.exit_code, "different" in result.output) == (0, True)
    assert "identical" in headrace.invoke(app, ["ledger", "rebuild"]).output


def test_rebuilds_during_a_running_driver_lose_nothing(stream: Stream, settings: Settings) -> None:
    failures: list[Exception] = []

    def drive() -> None:
        writer = open_writer(settings)
        for batch in range(3, 12):
            stream.run(batch, batch)
            try:
                project_dataset(writer, settings, "flights")
            except Transient:
                continue
            except Exception as error:  # noqa: BLE001  carried to the test's own thread
                failures.append(error)

    driver = threading.Thread(target=drive)
    driver.start()
    while driver.is_alive():
        rebuild(settings)
    driver.join()
    project_dataset(open_writer(settings), settings, "flights")
    assert failures == []
    assert rebuild(settings).identical
    assert [batch.batch for batch in open_reader(settings).last_batches(count=99)] == list(range(12))
