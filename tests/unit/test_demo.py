"""The demo: one at a time, nothing sent twice, no foreign file removed, exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from demo import command as cli
from demo import feed
from demo.feed import (
    FeedSender,
    demo_runs,
    ends_path,
    finished_records,
    manifest_path,
    read_ends,
    require_own_records,
)
from demo.questions import rejected_of_run
from demo.state import (
    LOCK,
    DemoRefused,
    demo_folder,
    demo_lock,
    removal_interrupted,
    remove_state,
    require_own_state,
)
from error_codes import raises
from rich.console import Console
from typer.testing import CliRunner

from include.cli.main import app
from include.ground.settings import Settings, load_settings
from include.producers.sending import DeliveryFailed, Pace, Produced, Run, Sent

FROM, TO = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 3, tzinfo=UTC)
FLIGHTS, WEATHER = demo_runs(FROM, TO, weather=True)


# --- state folder ------------------------------------------------------------------------------------------------


def made_state(settings: Settings) -> Path:
    """A state folder as Headrace leaves it."""
    for name in ("run", "kafka/data", "warehouse/flights/bronze", "logs", "demo"):
        (settings.state / name).mkdir(parents=True)
    for name in ("ledger.sqlite", "ledger.sqlite-wal", "kafka/data/x.log", "demo/flights.manifest.jsonl"):
        (settings.state / name).write_text("x")
    return settings.state


def test_second_concurrent_demo_is_refused(settings: Settings) -> None:
    with (
        demo_lock(settings),
        raises(DemoRefused, "demo-busy"),
        demo_lock(settings),
    ):
        pass
    with demo_lock(settings):
        pass


def test_fresh_stops_the_streams_then_removes_everything(settings: Settings) -> None:
    state = made_state(settings)
    there: list[bool] = []
    with demo_lock(settings):
        remove_state(settings, lambda: there.append((state / "warehouse").exists()))
    assert there == [True]
    assert [path.relative_to(state).as_posix() for path in state.rglob("*") if path.is_file()] == [f"demo/{LOCK}"]
    assert not removal_interrupted(settings)


@pytest.mark.parametrize("foreign", ["thesis.tex", "Documents/x", ".git/config", "ledger.sqlite/x"])
def test_fresh_refuses_a_folder_with_foreign_files(settings: Settings, foreign: str) -> None:
    state = made_state(settings)
    if foreign.startswith("ledger"):
        (state / "ledger.sqlite").unlink()
    (state / foreign).parent.mkdir(exist_ok=True)
    (state / foreign).write_text("not ours")
    stopped: list[bool] = []
    with raises(DemoRefused, "foreign-files") as caught:
        remove_state(settings, lambda: stopped.append(True))
    assert caught.value.facts["found"] == [foreign.split("/")[0]]
    assert not stopped
    assert (state / foreign).read_text() == "not ours"
    assert (state / "kafka/data/x.log").exists()


def test_fresh_does_not_follow_links_out_of_the_folder(settings: Settings, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    settings.state.mkdir()
    (settings.state / "warehouse").symlink_to(elsewhere)
    with raises(DemoRefused, "foreign-files"):
        require_own_state(settings)


def test_fresh_refuses_an_external_ledger(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path, ledger_url="postgresql://x@y/z")
    with raises(DemoRefused, "external-ledger"):
        require_own_state(settings)


def test_interrupted_removal_is_detected_and_continues(settings: Settings) -> None:
    made_state(settings)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remove_state(settings, interrupted)
    assert removal_interrupted(settings)
    remove_state(settings, lambda: None)
    assert not removal_interrupted(settings)
    assert not (settings.state / "kafka").exists()


# --- sender ------------------------------------------------------------------------------------------------------


class Topics:
    """Configurable end offsets of topics, and a `send` that only records its calls."""

    def __init__(self) -> None:
        self.ends = {"weather": {0: 0, 1: 0}, "flights": {0: 0, 1: 0}}
        self.sent: list[str] = []
        self.failure: Exception | None = None
        self.hold: threading.Event | None = None
        self.begun = threading.Event()

    def log_end_offsets(self, bootstrap: str, topic: str) -> dict[int, int]:
        return self.ends[topic]

    def send(self, run: Run, bootstrap: str, *, manifest: Path, pace: Pace, **_: Any) -> Sent:
        self.sent.append(run.feed.name)
        self.begun.set()
        if self.failure is not None:
            raise self.failure
        while self.hold is not None and not pace.stop():
            self.hold.wait(0.01)
        finished = not pace.stop()
        finish(manifest, run, sent=10 if finished else 4, finished=finished)
        count = 10 if finished else 4
        self.ends[run.feed.topic] = {0: count, 1: 0}
        return Sent(Produced(count, count, 0.1, 0.0, {}), 10, finished)


def finish(manifest: Path, run: Run, sent: int, finished: bool = True) -> None:
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"fault": "run", "run": run.facts(), "sent": sent, "finished": finished}) + "\n")


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    found = Topics()
    monkeypatch.setattr(feed, "log_end_offsets", found.log_end_offsets)
    monkeypatch.setattr(feed, "send", found.send)
    return found


def send_all(settings: Settings, runs: tuple[Run, ...] = (WEATHER, FLIGHTS)) -> FeedSender:
    found = FeedSender(settings, runs)
    found.start()
    found.open("127.0.0.1:9")
    found._thread.join(120)
    return found


def test_both_runs_are_sent_once(settings: Settings, topics: Topics) -> None:
    first = send_all(settings)
    assert (first.finished, first.sent, topics.sent) == (True, 20, ["weather", "flights"])
    second = send_all(settings)
    assert (second.finished, second.sent, topics.sent) == (True, 20, ["weather", "flights"])
    assert read_ends(settings, FLIGHTS) == {0: 10, 1: 0}


def test_stopped_run_is_unfinished_and_continues(settings: Settings, topics: Topics) -> None:
    topics.hold = threading.Event()
    first = FeedSender(settings, (WEATHER, FLIGHTS))
    first.start()
    first.open("127.0.0.1:9")
    assert topics.begun.wait(10)
    first.stop()
    assert (first.finished, topics.sent) == (False, ["weather"])
    topics.hold = None
    second = send_all(settings)
    assert (second.finished, topics.sent) == (True, ["weather", "weather", "flights"])


def test_sender_waits_for_the_broker(settings: Settings, topics: Topics) -> None:
    early = FeedSender(settings, (WEATHER, FLIGHTS))
    early.start()
    early.stop()
    assert (early.finished, topics.sent) == (False, [])
    early.raise_error()


def test_crash_between_manifest_and_ends_is_recovered(settings: Settings, topics: Topics) -> None:
    send_all(settings)
    ends_path(settings, FLIGHTS).unlink()
    assert not FeedSender(settings, (WEATHER, FLIGHTS)).finished
    assert send_all(settings).finished
    assert ends_path(settings, FLIGHTS).exists()
    assert topics.sent == ["weather", "flights"]


def test_failed_delivery_is_raised_in_the_main_thread(settings: Settings, topics: Topics) -> None:
    topics.failure = DeliveryFailed("weather", 3, "no broker")
    failed = send_all(settings)
    with pytest.raises(DeliveryFailed):
        failed.raise_error()
    assert not failed.finished


def test_topic_with_foreign_records_is_refused(settings: Settings, topics: Topics) -> None:
    topics.ends["flights"] = {0: 3, 1: 4}
    with raises(DemoRefused, "foreign-records") as caught:
        require_own_records(settings, (WEATHER, FLIGHTS), "127.0.0.1:9")
    assert (caught.value.facts["topic"], caught.value.facts["records"]) == ("flights", 7)


def test_unfinished_run_and_empty_topic_are_accepted(settings: Settings, topics: Topics) -> None:
    require_own_records(settings, (WEATHER, FLIGHTS), "127.0.0.1:9")
    topics.ends["flights"] = {0: 3, 1: 4}
    finish(manifest_path(settings, FLIGHTS), FLIGHTS, sent=7, finished=False)
    require_own_records(settings, (WEATHER, FLIGHTS), "127.0.0.1:9")


def test_run_killed_before_its_manifest_is_detected_by_its_journal(settings: Settings, topics: Topics) -> None:
    topics.ends["flights"] = {0: 3, 1: 4}
    journal = Path(f"{manifest_path(settings, FLIGHTS)}.progress")
    journal.parent.mkdir(parents=True)
    journal.touch()
    require_own_records(settings, (WEATHER, FLIGHTS), "127.0.0.1:9")


def test_manifest_without_its_records_is_refused(settings: Settings, topics: Topics) -> None:
    finish(manifest_path(settings, FLIGHTS), FLIGHTS, sent=10)
    topics.ends["flights"] = {0: 3, 1: 4}
    with raises(DemoRefused, "topic-incomplete"):
        require_own_records(settings, (FLIGHTS,), "127.0.0.1:9")


def test_demo_of_another_range_is_refused(settings: Settings) -> None:
    finish(manifest_path(settings, FLIGHTS), FLIGHTS, sent=10)
    assert finished_records(settings, FLIGHTS) == 10
    with raises(DemoRefused, "manifest-mismatch"):
        finished_records(settings, demo_runs(FROM, TO + timedelta(days=1))[0])


# --- score -------------------------------------------------------------------------------------------------------


def test_only_records_of_the_demo_are_scored() -> None:
    places = [(0, 9), (0, 10), (1, 4), (1, 5), (2, 0)]
    rejected = pl.DataFrame(places, schema=["_partition", "_offset"], orient="row")
    assert rejected_of_run(rejected, {0: 10, 1: 5}).rows() == [(0, 9), (1, 4)]
    assert rejected_of_run(rejected, {}).height == 0


# --- command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    monkeypatch.setenv("HEADRACE_STATE", str(settings.state))
    load_settings.cache_clear()
    monkeypatch.setattr("demo.state.run_checks", lambda: [])
    yield CliRunner()
    load_settings.cache_clear()


def stub_steps(monkeypatch: pytest.MonkeyPatch, end: bool | BaseException) -> None:
    def run_steps(*_: object) -> bool:
        if isinstance(end, BaseException):
            raise end
        return end

    monkeypatch.setattr(cli, "_run_steps", run_steps)


@pytest.mark.parametrize(("success", "code"), [(True, 0), (False, 1)])
def test_exit_code_is_the_verdict(
    command: CliRunner, monkeypatch: pytest.MonkeyPatch, success: bool, code: int
) -> None:
    stub_steps(monkeypatch, success)
    assert command.invoke(app, ["demo"]).exit_code == code


@pytest.mark.parametrize(
    ("perfect", "balanced", "success"), [(True, True, True), (False, True, False), (True, False, False)]
)
def test_success_needs_perfect_score_and_balanced_audit(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, perfect: bool, balanced: bool, success: bool
) -> None:
    for chapter in ("_start_streams", "_watch", "_answer", "_suggest"):
        monkeypatch.setattr(cli, chapter, lambda *_: None)
    monkeypatch.setattr(cli, "_score", lambda *_: perfect)
    monkeypatch.setattr(cli, "_audit", lambda *_: balanced)
    assert cli._run_steps(Console(quiet=True), settings, (WEATHER, FLIGHTS), 0.0) is success


def test_failure_is_printed_and_exits_1(command: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_steps(monkeypatch, DeliveryFailed("flights", 3, "no [/broker]"))
    result = command.invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "no [/broker]" in result.stderr
    assert "Traceback" not in result.output


def test_refusal_is_left_to_the_entry_point(command: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_steps(monkeypatch, DemoRefused("records of others"))
    assert isinstance(command.invoke(app, ["demo"]).exception, DemoRefused)


def test_ctrl_c_prints_one_line_and_exits_130(command: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    stub_steps(monkeypatch, KeyboardInterrupt())
    result = command.invoke(app, ["demo"])
    assert result.exit_code == 130
    assert result.output.count("\n") == 1
    assert "continues here" in result.output


def test_unfit_machine_is_refused_before_anything_is_created(
    command: CliRunner, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    from include.observe.doctor import failed, warning

    monkeypatch.setattr("demo.state.run_checks", lambda: [warning("disk", "little", "x"), failed("java", "no", "y")])
    stub_steps(monkeypatch, True)
    result = command.invoke(app, ["demo"])
    assert isinstance(result.exception, DemoRefused)
    assert "java: no" in str(result.exception)
    assert "disk" not in str(result.exception)
    assert not settings.state.exists()


def test_fresh_requires_confirmation(command: CliRunner, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    stub_steps(monkeypatch, True)
    state = made_state(settings)
    result = command.invoke(app, ["demo", "--fresh"], input="n\n")
    assert result.exit_code == 1
    assert (state / "kafka/data/x.log").exists()
    result = command.invoke(app, ["demo", "--fresh", "--yes"])
    assert result.exit_code == 0
    assert not (state / "kafka").exists()
    assert (demo_folder(settings) / LOCK).exists()


def test_interrupted_removal_continues_without_confirmation(
    command: CliRunner, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    stub_steps(monkeypatch, True)
    state = made_state(settings)
    (demo_folder(settings) / "removing").touch()
    assert command.invoke(app, ["demo"]).exit_code == 0
    assert not (state / "kafka").exists()
