"""What must not start at all: it ends with 2 before any JVM starts, and names what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from site_of_recovery import Site

REFUSED = 2
# Every JVM says in its first line that it has seen this variable.
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
def test_bad_setting(site: Site, key: str) -> None:
    driver = site.drive(**TALKATIVE, **{key: WRONG[key]})
    command = site.command("up", site.dataset, **TALKATIVE, **{key: WRONG[key]})
    assert driver.ended() == REFUSED
    assert command.returncode == REFUSED
    for said in (driver.said(), command.stderr):
        assert NAMED.get(key, key) in said
        assert "Traceback" not in said
        assert JVM_STARTED not in said
    assert site.word() == {}


def test_no_java(site: Site, tmp_path: Path) -> None:
    nowhere = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    driver = site.drive(**nowhere)
    assert driver.ended() == REFUSED
    assert "Java: " in driver.said()
    assert "Traceback" not in driver.said()
    assert "Java: " in site.word()["reason"]
    other = site.command("up", site.dataset, **nowhere, HEADRACE_STATE=str(tmp_path / "another state"))
    assert other.returncode == REFUSED
    assert "Java: " in other.stderr


def test_no_broker(site: Site, tmp_path: Path) -> None:
    driver = site.drive(HEADRACE_STATE=str(tmp_path / "another state"))
    assert driver.ended() == REFUSED
    assert "no broker is running" in driver.said()
