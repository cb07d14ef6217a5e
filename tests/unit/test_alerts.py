"""Alerts: which conditions fire when, that each change is delivered once, and that Prometheus gets the same rules."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from json_receiver import JsonReceiver
from prometheus_client.core import GaugeMetricFamily, Metric

from include.ground.errors import Terminal
from include.ground.settings import CLONE, Settings
from include.observe.alerts import (
    CONDITIONS,
    AlertChange,
    AlertCondition,
    AlertEvaluation,
    AlertStates,
    CommandReceiver,
    Deliver,
    NotDelivered,
    Webhook,
    deliver_due,
    due_changes,
    rules_text,
    states_file,
    updated_states,
    with_delivered,
)
from include.observe.metrics import FIGURES
from include.state.json_file import JsonFile
from include.state.lease import LockHeld

NOW = datetime(2026, 6, 1, tzinfo=UTC)
LAGGING = AlertCondition("Lagging", "lag", ">", 300, 60, "page", "{dataset} lags by {value:.0f} s", "headrace status")


def lag(seconds: float | None, release: str = "r1") -> list[Metric]:
    family = GaugeMetricFamily("lag", "", labels=["dataset", "release"])
    if seconds is not None:
        family.add_metric(["flights", release], seconds)
    return [family]


@dataclass
class Watch:
    """Looks at a lag minute by minute; `delivered` are the changes that the receiver has taken."""

    delivered: list[str] = field(default_factory=list)
    states: AlertStates = field(default_factory=AlertStates)
    refusing: bool = False

    def poll(self, minute: int, seconds: float | None, release: str = "r1") -> None:
        now = NOW + timedelta(minutes=minute)
        self.states = updated_states(self.states, lag(seconds, release), now, [LAGGING])
        changes = list(due_changes(self.states, now, [LAGGING]))
        assert len(changes) <= 1
        for key, change in changes:
            if not self.refusing:
                self.delivered.append(f"{minute} {change.status}: {change.summary}")
                self.states = with_delivered(self.states, key, change)


def test_condition_fires_once_after_its_time_and_resolves_once() -> None:
    watch = Watch()
    for minute, seconds in enumerate([10, 400, 410, 420, 20, 20, 500, 600]):
        watch.poll(minute, seconds)
    assert watch.delivered == [
        "2 firing: flights lags by 410 s",
        "4 resolved: flights lags by 20 s",
        "7 firing: flights lags by 600 s",
    ]


def test_condition_that_holds_for_less_than_its_time_never_fires() -> None:
    watch = Watch()
    for minute, seconds in enumerate([400, 10, 400, 10, 400]):
        watch.poll(minute, seconds)
    assert watch.delivered == []


def test_unknown_figure_neither_resolves_nor_repeats_an_alert() -> None:
    watch = Watch()
    for minute, seconds in enumerate([400, 400, None, None, 400, 10]):
        watch.poll(minute, seconds)
    assert [line.split(":")[0] for line in watch.delivered] == ["1 firing", "5 resolved"]


def test_another_release_continues_the_alert_of_its_dataset() -> None:
    watch = Watch()
    for minute, (seconds, release) in enumerate([(400, "r1"), (400, "r1"), (400, "r2"), (10, "r2")]):
        watch.poll(minute, seconds, release)
    assert [line.split(":")[0] for line in watch.delivered] == ["1 firing", "3 resolved"]


def test_change_that_was_not_taken_is_delivered_at_a_later_look() -> None:
    watch = Watch(refusing=True)
    watch.poll(0, 400)
    watch.poll(2, 400)
    watch.refusing = False
    watch.poll(3, 400)
    watch.poll(4, 400)
    assert watch.delivered == ["3 firing: flights lags by 400 s"]


def test_states_survive_the_process(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path)
    states = updated_states(AlertStates(), lag(400), NOW, [LAGGING])
    states_file(settings).write(states)
    assert states_file(settings).read() == states


def test_every_condition_is_of_a_metric_that_is_exported() -> None:
    assert {each.metric.removeprefix("headrace_") for each in CONDITIONS} <= {each.name for each in FIGURES}


def test_rules_of_prometheus_are_those_conditions() -> None:
    file = CLONE / "infra" / "observability" / "alerts.yaml"
    assert file.read_text("utf-8") == rules_text(), "headrace alerts --rules > infra/observability/alerts.yaml"
    rules = yaml.safe_load(rules_text())["groups"][0]["rules"]
    assert [(rule["alert"], rule["expr"]) for rule in rules] == [(each.name, each.expression) for each in CONDITIONS]
    assert not any("{" in rule["annotations"]["summary"].replace("{{", "") for rule in rules)


@pytest.fixture
def webhook() -> Iterator[JsonReceiver]:
    receiver = JsonReceiver()
    with receiver.up():
        yield receiver


def failing(value: float) -> list[Metric]:
    family = GaugeMetricFamily("headrace_process_failed", "", labels=["process"])
    family.add_metric(["stream-flights"], value)
    return [family]


def delivered_by(receiver: Deliver) -> tuple[AlertStates, list[str]]:
    """Deliver a failure of some minutes and its end; return the states and the lines for people."""
    states, shown = AlertStates(), list[str]()
    for minute, value in enumerate([1, 1, 1, 0, 0]):
        now = NOW + timedelta(minutes=minute)
        states = deliver_due(updated_states(states, failing(value), now), now, receiver, shown.append)
    return states, shown


def test_webhook_and_command_get_each_change_as_json(webhook: JsonReceiver, tmp_path: Path) -> None:
    webhook.codes.append(503)
    states, shown = delivered_by(Webhook(f"{webhook.url}/alerts"))
    posted = webhook.posted
    assert [change["status"] for change in posted] == ["firing", "resolved"]
    file = tmp_path / "changes.jsonl"
    assert delivered_by(CommandReceiver(f"cat >> '{file}'"))[0] == AlertStates()
    assert [json.loads(line) for line in file.read_text().splitlines()] == posted
    assert posted[0]["labels"] == {"process": "stream-flights"}
    assert posted[0]["summary"] == "stream-flights failed and is not started again"
    assert "it answered 503" in shown[1]
    assert states == AlertStates()


def change() -> AlertChange:
    states = updated_states(AlertStates(), failing(1), NOW)
    ((_, found),) = due_changes(states, NOW)
    return found


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://nowhere.invalid/"])
def test_unreachable_webhook_is_an_error_that_names_no_secret_path(url: str) -> None:
    with pytest.raises(NotDelivered) as error:
        Webhook(f"{url}?token=secret")(change())
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url", ["ftp://x/", "nothing", "http://", "file:///etc/passwd", "http://[x", "http://h:abc", "http://h:99999"]
)
def test_address_that_is_no_webhook_is_refused(url: str) -> None:
    with pytest.raises(Terminal, match="is not a receiver of alerts"):
        Webhook(url)


def test_command_that_fails_is_an_error_with_its_output() -> None:
    with pytest.raises(NotDelivered, match="ended with 3: no such door"):
        CommandReceiver("echo no such door >&2; exit 3")(change())


def test_receiver_that_answers_nonsense_is_an_error_that_is_retried(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"nonsense\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotDelivered):
            Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/")(change())
        thread.join()


def test_full_disk_neither_ends_the_alerts_nor_delivers_them_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, shown = list[AlertChange](), list[str]()
    evaluation = AlertEvaluation(settings, taken.append, shown.append)
    monkeypatch.setattr(evaluation._collector, "collect", lambda: failing(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JsonFile, "write", full)
    for minute in range(4):
        evaluation.continue_after_errors(NOW + timedelta(minutes=minute))
    assert len(taken) == 1
    assert sum("No space left" in line for line in shown) == 4


def test_two_evaluations_of_one_state_folder_are_refused(settings: Settings) -> None:
    first = AlertEvaluation(settings, None, print)
    with first.alone(), pytest.raises(LockHeld), AlertEvaluation(settings, None, print).alone():
        pass
