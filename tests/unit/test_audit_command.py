"""`headrace audit`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_warehouse import SmallWarehouse
from test_audit_balance import PIPELINE, VALUES, SmallKafka, sales_settings, write_sales

from include.audit.mirror import MirrorResult
from include.audit.run import last_outcome
from include.audit.source import SourceUnusable
from include.cli import audit as audit_command
from include.cli import main
from include.ground.settings import Settings, load_settings
from include.state.process_states import ProcessState, ProcessStatus


@pytest.fixture
def kafka() -> SmallKafka:
    return SmallKafka(VALUES, {0: 5, 1: 1})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return sales_settings(tmp_path)


@pytest.fixture
def warehouse(settings: Settings) -> SmallWarehouse:
    return write_sales(settings)


def command(monkeypatch: pytest.MonkeyPatch, settings: Settings, kafka: SmallKafka, *options: str) -> int:
    monkeypatch.setenv("HEADRACE_STATE", str(settings.state))
    monkeypatch.setenv("HEADRACE_DATASETS", str(settings.datasets))
    monkeypatch.setattr(sys, "argv", ["headrace", "audit", *options])
    monkeypatch.setattr(audit_command, "open_topic", lambda _, name, jars: kafka.open_topic(name))
    load_settings.cache_clear()
    try:
        with pytest.raises(SystemExit) as left:
            main.main()
    finally:
        load_settings.cache_clear()
    return int(left.value.code or 0)


@pytest.fixture
def broker_file(settings: Settings) -> None:
    run = {"name": "broker", "pid": 1, "started": 0.0, "argv": [], "bootstrap": "127.0.0.1:1"}
    (settings.state / "run").mkdir(parents=True)
    (settings.state / "run" / "broker.json").write_text(json.dumps(run))


@pytest.mark.usefixtures("broker_file")
def test_command_with_an_unchecked_table_exits_2(
    settings: Settings, kafka: SmallKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = settings.datasets / "sales" / "pipeline.yaml"
    pipeline.write_text(PIPELINE.replace("{sum: amount}", "{max: \"window(sold_at, '5 minutes')\"}"))
    write_sales(settings)
    assert command(monkeypatch, settings, kafka) == 2
    printed = capsys.readouterr()
    assert "gold.shop_days: not checked" in printed.out
    assert "DuckDB cannot evaluate" in printed.err


@pytest.mark.usefixtures("broker_file", "warehouse")
def test_audit_of_a_stream_that_stands_still_is_balanced_and_not_complete(
    settings: Settings, kafka: SmallKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "poison at offset 4"
    monkeypatch.setattr("include.observe.processes.observe_stream", lambda *_: failed)
    for state, words in ((ProcessState.FAILED, "has failed"), (ProcessState.HALTED, "is halted")):
        failed = ProcessStatus("stream:sales", None, state, why)
        assert command(monkeypatch, settings, kafka) == 2
        printed = " ".join(capsys.readouterr().out.split())
        assert f"balanced not complete: stream sales {words}" in printed
        assert "nothing was published since" in printed
        assert why in printed
        assert command(monkeypatch, settings, kafka, "--json") == 2
        found = json.loads(capsys.readouterr().out)
        assert (found["balanced"], found["datasets"][0]["standing"].startswith("stream sales")) == (True, True)
        outcome = last_outcome(settings, "sales")
        assert outcome is not None
        assert why in outcome.standing
    failed = ProcessStatus("stream:sales", None, ProcessState.STOPPED)
    assert command(monkeypatch, settings, kafka) == 0, "stopped on request"


@pytest.mark.usefixtures("broker_file")
def test_command_prints_balanced_or_the_first_wrong_range(
    settings: Settings,
    warehouse: SmallWarehouse,
    kafka: SmallKafka,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, settings, kafka) == 0
    assert capsys.readouterr().out.strip().endswith("balanced")
    assert command(monkeypatch, settings, kafka) == 0
    assert "compared the records after batch 1; the 4 earlier ones were balanced" in capsys.readouterr().out
    kafka.values[0, 2] = b"never ingested"
    assert command(monkeypatch, settings, kafka) == 1
    assert "not balanced; first finding: gap in bronze.sales partition 0 offsets [2, 3)" in capsys.readouterr().out
    assert command(monkeypatch, settings, kafka, "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert result["balanced"] is False
    assert result["datasets"][0]["findings"][0] == {
        "kind": "gap",
        "table": "bronze.sales",
        "rows": 1,
        "detail": "in Kafka but not in bronze",
        "partition": 0,
        "start": 2,
        "end": 3,
    }


def test_command_without_a_broker_audits_nothing(
    settings: Settings, kafka: SmallKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, settings, kafka) == 2
    assert "nothing was audited" in capsys.readouterr().err


@pytest.mark.usefixtures("broker_file", "warehouse")
def test_comparison_with_a_source_that_failed_is_recorded_with_the_rest_of_the_audit(
    settings: Settings, kafka: SmallKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, settings, kafka, "--source", "postgresql://user:p@ss/w:rd@host/bank") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert last_outcome(settings, "sales") is None, "it connects before it audits"
    failed = MirrorResult()
    failed.leave_out(["gold.shop_days"], SourceUnusable("the source went away", "start it"))
    monkeypatch.setattr(audit_command, "SourceDatabase", lambda *_: SimpleNamespace(name="bank", close=lambda: None))
    monkeypatch.setattr(audit_command, "mirror_audits", lambda *_: {"sales": failed})
    assert command(monkeypatch, settings, kafka, "--source", "postgresql://user@host/bank") == 2
    assert "gold.shop_days: not checked, against the source: the source went away" in capsys.readouterr().out
    outcome = last_outcome(settings, "sales")
    assert outcome is not None
    assert (outcome.balanced, outcome.unchecked) == (False, 1)
