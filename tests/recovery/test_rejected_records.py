"""Rejected records are reinstated while a stream runs, once, also after kills of job and driver."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from recovery_site import Driver, Site

from spark_jobs.tables.failpoints import Step

pytestmark = pytest.mark.extended

REFUSED = 2
READ_AT = datetime(2024, 3, 1, tzinfo=UTC)


def rejected(site: Site, *words: str) -> list[dict[str, Any]]:
    listed = site.command("rejected", "list", "--dataset", site.dataset, "--json", *words)
    assert listed.returncode == 0, listed.stderr
    found = json.loads(listed.stdout)
    assert isinstance(found, list)
    return found


def place_of(record: dict[str, Any]) -> tuple[str, str]:
    return str(record["partition"]), str(record["offset"])


def where(record: dict[str, Any]) -> tuple[str, str]:
    return "--offsets", json.dumps({str(record["partition"]): [record["offset"], record["offset"] + 1]})


def fixed(site: Site, record: dict[str, Any]) -> None:
    """Fix a broken reading, whose litres are a word, and expect it in silver from now on."""
    reading = json.loads(record["payload"]) | {"litres": 17}
    done = site.command(
        *("rejected", "fix", "--dataset", site.dataset, *place_of(record)),
        *("--payload", json.dumps(reading), "--why", "the meter was read again"),
    )
    assert done.returncode == 0, done.stderr
    sent = next(item for item in site.sent if item.value == record["payload"])
    site.sent[site.sent.index(sent)] = replace(sent, fate="silver", reading=reading | {"read_at": READ_AT})


def stopped(driver: Driver) -> None:
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0


@pytest.mark.timeout(900)
def test_rejected_records_are_reinstated_once(site: Site) -> None:
    driver = site.start_driver()
    site.send(200)
    site.wait_published(driver)
    name = ("--dataset", site.dataset)
    one, other, third, *_ = rejected(site, "--reason", "type", "--status", "open")
    fixed(site, one)
    assert [r["status"] for r in rejected(site, *where(one))] == ["fixed"]

    # The job dies in the middle, then the driver during the patch: the same plan continues.
    again = ("rejected", "reinstate", *name, *where(one), "--yes")
    died = site.command(*again, HEADRACE_FAILPOINT="kill:slice.records-rebuilt")
    assert died.returncode == REFUSED, died.stdout
    (plan,) = [p for p in json.loads(site.command("plan", "list", "--json").stdout) if p["dataset"] == site.dataset]
    assert (plan["kind"], plan["stage"]) == ("reinstate", "planned")
    stopped(driver)
    driver = site.start_driver("kill:patch.silver-committed")
    site.wait_state("running", driver)
    cut = site.command("plan", "apply", plan["id"], "--yes")
    assert (cut.returncode, driver.wait()) == (REFUSED, -signal.SIGKILL), cut.stdout
    driver = site.start_driver()
    done = site.command("plan", "apply", plan["id"], "--yes")
    assert done.returncode == 0, done.stderr
    site.send(50)
    site.wait_published(driver)
    site.assert_nothing_lost()
    shown = json.loads(site.command("rejected", "show", *name, *place_of(one), "--json").stdout)
    assert shown["status"] == "reinstated"
    assert [decision["act"] for decision in shown["decisions"]] == ["fix", "reinstate"]
    assert site.command(*again).returncode == REFUSED, "it is rejected no longer"

    # A discarded record stays out, whatever its fix says, until it is reinstated by name.
    fixed(site, other)
    assert site.command("rejected", "discard", *name, *where(other), "--why", "of no use", "--yes").returncode == 0
    assert site.command("rejected", "reinstate", *name, "--status", "fixed", "--yes").returncode == REFUSED
    every = site.command("rejected", "reinstate", *name, "--reason", "type", "--yes")
    assert (every.returncode, "equal" in every.stdout) == (0, True), every.stderr
    assert [r["status"] for r in rejected(site, *where(other))] == ["discarded"]
    back = site.command("rejected", "reinstate", *name, *where(other), "--yes")
    assert back.returncode == 0, back.stderr
    site.assert_nothing_lost()
    assert [r["status"] for r in rejected(site, *where(third))] == ["open"]
    unknown = site.command("rejected", "fix", *name, *place_of(one), "--payload", "{}", "--why", "once more")
    assert (unknown.returncode, "is not a rejected record" in unknown.stderr) == (REFUSED, True)
    stopped(driver)


@pytest.mark.timeout(900)
def test_records_on_which_silver_code_fails_do_not_stop_the_stream(site: Site) -> None:
    code = site.settings.datasets / site.dataset / "silver.py"
    text = code.read_text("utf-8")
    dividing = 'return accepted.selectExpr("*", "1 / (litres - 50) as share")\n'
    code.write_text(text.replace("return accepted\n", dividing), "utf-8")
    site.send(200)
    whole, of_fifty = list(site.sent), [item for item in site.sent if item.reading.get("litres") == 50]
    site.sent = [replace(item, fate="transform_error") if item in of_fifty else item for item in whole]
    driver = site.start_driver(f"kill:{Step.PART_WRITTEN}")
    assert driver.wait() == -signal.SIGKILL
    driver = site.start_driver()
    site.wait_published(driver)
    site.assert_nothing_lost()
    failed = rejected(site, "--reason", "transform_error", "--status", "open")
    assert sorted(record["payload"] for record in failed) == sorted(item.value for item in of_fifty) != []
    assert all("DIVIDE_BY_ZERO" in record["reasons"][0]["detail"] for record in failed)

    code.write_text(text.replace("return accepted\n", dividing.replace("1 / (litres - 50)", "litres")), "utf-8")
    released = site.command("release", "run", "--dataset", site.dataset, "--yes")
    assert released.returncode == 0, released.stderr
    site.sent = whole
    site.assert_nothing_lost()
    stopped(driver)
