"""The rules, the endpoint and the dashboard with the real Prometheus and Alertmanager (`make test-observability`)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from grown_history import GrownHistory
from json_receiver import JsonReceiver

from include.declare.dataset import snapshot_dataset
from include.ground.ports import free_ports
from include.ground.settings import CLONE, Settings
from include.observe.metrics import FIGURES

OBSERVABILITY = CLONE / "infra" / "observability"
DASHBOARD = OBSERVABILITY / "headrace_dashboard.json"
METRIC = re.compile(r"headrace_(\w+)")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
SHOWN = 8
"""Panels that have figures here, at the least: the others need a broker, a driver or an open plan."""
pytestmark = pytest.mark.extended


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not on PATH: apt-get install prometheus prometheus-alertmanager"
    return found


@contextmanager
def running(*argv: str, **variables: str) -> Iterator[None]:
    process = subprocess.Popen(argv, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.fixture
def receiver() -> Iterator[JsonReceiver]:
    found = JsonReceiver()
    with found.up():
        yield found


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.5)


def answer_of(port: int, path: str, **query: str) -> Any:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
            return json.loads(answer.read())["data"]
    except OSError:
        return None


def test_rules_fire_in_the_cases_of_the_rules() -> None:
    done = subprocess.run([tool("promtool"), "test", "rules", str(OBSERVABILITY / "alerts_test.yaml")], check=False)
    assert done.returncode == 0


def test_scrape_alert_webhook_and_every_query_of_the_dashboard(tmp_path: Path, receiver: JsonReceiver) -> None:
    metrics, prometheus, alertmanager = free_ports(3)
    config = yaml.safe_load((OBSERVABILITY / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    # An alert that fires at once: no broker runs for this state folder, so figures are unknown.
    rule = {"alert": "Unknown", "expr": "headrace_unknown_figures > 0", "labels": {"severity": "page"}}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    config["rule_files"] = [str(OBSERVABILITY / "alerts.yaml"), str(tmp_path / "rules.yaml")]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{metrics}"]
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{alertmanager}"]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    route = {"receiver": "w", "group_wait": "0s", "group_interval": "1s"}
    hook = {"name": "w", "webhook_configs": [{"url": f"{receiver.url}/"}]}
    (tmp_path / "alertmanager.yaml").write_text(yaml.safe_dump({"route": route, "receivers": [hook]}))
    settings = Settings(state=tmp_path / "state")
    snapshot_dataset(settings, "flights")
    history = GrownHistory(settings)
    for _ in range(3):
        history.add_batch()
    with (
        running(
            sys.executable, "-m", "include.observe.metrics", "127.0.0.1", str(metrics),
            HEADRACE_STATE=str(settings.state),
        ),
        running(
            tool("prometheus-alertmanager"), f"--config.file={tmp_path}/alertmanager.yaml", "--cluster.listen-address=",
            f"--web.listen-address=127.0.0.1:{alertmanager}", f"--storage.path={tmp_path}/am",
        ),
        running(
            tool("prometheus"), f"--config.file={tmp_path}/prometheus.yaml", f"--storage.tsdb.path={tmp_path}/tsdb",
            f"--web.listen-address=127.0.0.1:{prometheus}",
        ),
    ):  # fmt: skip
        until(lambda: bool((answer_of(prometheus, "query", query="up == 1") or {}).get("result")), "it is scraped")
        until(lambda: bool(receiver.posted), "the alert reaches the webhook")
        assert receiver.posted[0]["alerts"][0]["labels"]["alertname"] == "Unknown"
        rules = answer_of(prometheus, "rules")["groups"]
        assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}
        sized = "headrace_table_version"
        until(lambda: bool((answer_of(prometheus, "query", query=sized) or {}).get("result")), "tables are counted")
        shown = [title for title, expression in queries() if labels_are_those_of_the_query(prometheus, expression)]
        assert len(shown) >= SHOWN, shown


def queries() -> list[tuple[str, str]]:
    """Return the title and the query of each panel, for all datasets."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], panel["targets"][0]["expr"].replace("$dataset", ".*")) for panel in panels]


def labels_are_those_of_the_query(prometheus: int, expression: str) -> bool:
    """Assert that a query is valid and its metric exported; return whether it has series, each with all its labels."""
    names = {name for name in METRIC.findall(expression) if name in {each.name for each in FIGURES}}
    assert names or "headrace_process_restarts_total" in expression, expression
    found = answer_of(prometheus, "query", query=expression)
    assert found is not None, expression
    grouped = GROUPED.search(expression)
    labels = {label.strip() for label in grouped[1].split(",")} if grouped else set()
    assert all(set(series["metric"]) == labels for series in found["result"]), (expression, found["result"])
    return bool(found["result"])
