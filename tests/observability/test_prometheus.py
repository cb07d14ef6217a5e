"""The rules, the endpoint and the dashboard with the real Prometheus and Alertmanager (`make test-observability`)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from include.host.ports import free_ports
from include.metrics.dataset_metrics import HELP
from include.settings import CLONE

OBSERVABILITY = CLONE / "infra" / "observability"
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


@contextmanager
def webhook(port: int, posted: list[dict[str, Any]]) -> Iterator[None]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", port), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.5)


def asked(port: int, path: str, **query: str) -> Any:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
            return json.loads(answer.read())["data"]
    except OSError:
        return None


def test_rules_fire_in_the_cases_of_the_rules() -> None:
    done = subprocess.run([tool("promtool"), "test", "rules", str(OBSERVABILITY / "alerts_test.yaml")], check=False)
    assert done.returncode == 0


def test_scrape_alert_webhook_and_every_query_of_the_dashboard(tmp_path: Path) -> None:
    metrics, prometheus, alertmanager, receiver = free_ports(4)
    config = yaml.safe_load((OBSERVABILITY / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    # An alert that fires at once: nothing is published in this state folder, so figures are unknown.
    rule = {"alert": "Unknown", "expr": "headrace_unknown_figures > 0", "labels": {"severity": "page"}}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}))
    config["rule_files"] = [str(OBSERVABILITY / "alerts.yaml"), str(tmp_path / "rules.yaml")]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{metrics}"]
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{alertmanager}"]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    route = {"receiver": "w", "group_wait": "0s", "group_interval": "1s"}
    hook = {"name": "w", "webhook_configs": [{"url": f"http://127.0.0.1:{receiver}/"}]}
    (tmp_path / "alertmanager.yaml").write_text(yaml.safe_dump({"route": route, "receivers": [hook]}))
    posted: list[dict[str, Any]] = []
    with (
        webhook(receiver, posted),
        running(
            sys.executable, "-m", "include.metrics.metrics_server", "127.0.0.1", str(metrics),
            HEADRACE_STATE=str(tmp_path / "state"),
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
        until(lambda: bool((asked(prometheus, "query", query="up == 1") or {}).get("result")), "it is scraped")
        until(lambda: bool(posted), "the alert reaches the webhook")
        assert posted[0]["alerts"][0]["labels"]["alertname"] == "Unknown"
        rules = asked(prometheus, "rules")["groups"]
        assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}
        dashboard = json.loads((OBSERVABILITY / "headrace_dashboard.json").read_text())
        for panel in dashboard["panels"]:
            expression = panel["targets"][0]["expr"].replace("$dataset", ".*")
            assert asked(prometheus, "query", query=expression) is not None, expression
            names = {word for word in HELP if f"headrace_{word}" in expression}
            assert names or "headrace_process_restarts_total" in expression, expression
