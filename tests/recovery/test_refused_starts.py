"""Refused starts: the driver ends with 2 before any JVM starts, and names the problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recovery_site import Site

REFUSED = 2
# Every JVM prints this variable in its first line.
TALKATIVE = {"JAVA_TOOL_OPTIONS": "-Dheadrace.test=1"}
JVM_STARTED = "Picked up JAVA_TOOL_OPTIONS"
WRONG = {
    "HEADRACE_COLOUR": "red",
    "HEADRACE_BATCH_RECORDS": "many",
    "HEADRACE_KAFKA_OPTIONS": json.dumps({"failOnDataLoss": "false"}),
    "HEADRACE_SPARK_CONF": json.dumps({"spark.sql.session.timeZone": "Europe/Berlin"}),
}
NAMED = {
    "HEADRACE_KAFKA_OPTIONS": "failOnDataLoss",
    "HEADRACE_SPARK_CONF": "spark.sql.session.timeZone",
}


@pytest.mark.parametrize("key", WRONG)
def test_invalid_setting_is_refused(site: Site, key: str) -> None:
    driver = site.start_driver(**TALKATIVE, **{key: WRONG[key]})
    command = site.command("up", site.dataset, **TALKATIVE, **{key: WRONG[key]})
    assert driver.wait() == REFUSED
    assert command.returncode == REFUSED
    for output in (driver.log_text(), command.stderr):
        assert NAMED.get(key, key) in output
        assert "Traceback" not in output
        assert JVM_STARTED not in output
    assert site.status() == {}


@pytest.mark.extended
def test_missing_java_is_refused(site: Site, tmp_path: Path) -> None:
    nowhere = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    driver = site.start_driver(**nowhere)
    assert driver.wait() == REFUSED
    assert "Java: " in driver.log_text()
    assert "Traceback" not in driver.log_text()
    assert "Java: " in site.status()["reason"]
    other = site.command("up", site.dataset, **nowhere, HEADRACE_STATE=str(tmp_path / "another state"))
    assert other.returncode == REFUSED
    assert "Java: " in other.stderr


def test_missing_broker_is_refused(site: Site, tmp_path: Path) -> None:
    driver = site.start_driver(HEADRACE_STATE=str(tmp_path / "another state"))
    assert driver.wait() == REFUSED
    assert "no broker is running" in driver.log_text()
