"""A source renames a column that a derived dataset reads: both in one plan, with its command and a driver killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from recovery_site import TEMPLATE, Site, close_broker, copy_dataset, repeated_commits, wait_until

from include import api
from include.ground.paths import derived_run_path, warehouse
from include.ground.settings import CLONE, Settings
from include.observe.progress import sources_behind
from include.read.published_tables import pinned
from include.state.owner_requests import pending_request
from include.state.process_states import stream_name
from include.state.run_files import RunFile, read_run_file

pytestmark = [pytest.mark.extended, pytest.mark.timeout(1500)]

METER, DAYS = "meter", "meter_days"
NOT_APPROVED, REFUSED = 1, 2
SILVER = '''"""Readings."""
from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame) -> DataFrame:
    """Return the readings with a mark of the large ones."""
    return accepted.withColumn("MARK", F.col("litres") > 50)
'''
DERIVED = """sources: {readings: silver.meter}
gold:
  meter_days:
    query: gold/meter_days.sql
    grain: [day, device]
    touched_by:
      readings: {day: "date_trunc('day', read_at)", device: device}
"""
QUERY = """select date_trunc('day', read_at) as day, device, count(*) as readings, sum(litres) as litres,
count_if(MARK) as marked
from readings group by 1, 2
"""
EXPECTED = """select date_trunc('day', read_at) as day, device, count(*) as readings,
cast(sum(litres) as bigint) as litres, count(*) filter (litres > 50) as marked from sent group by all"""
BOTH = """select (select sum(readings) from gold.meter_days)::bigint, (select sum(litres) from gold.meter_days)::bigint,
(select count(*) from silver.meter where big)"""


def declare(settings: Settings, mark: str) -> None:
    """Write both folders: the source with the column `mark`, and the days that count it."""
    copy_dataset(TEMPLATE, settings.datasets / METER, METER)
    (settings.datasets / METER / "silver.py").write_text(SILVER.replace("MARK", mark))
    folder = settings.datasets / DAYS / "gold"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "derived.yaml").write_text(DERIVED)
    (folder / "meter_days.sql").write_text(QUERY.replace("MARK", mark))


@pytest.fixture
def meter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The source in its own state folder, with a runner, of which the days are another dataset."""
    root = tmp_path_factory.mktemp("released together")
    settings = Settings(state=root / "state", datasets=root / "datasets", driver_memory="1g")
    declare(settings, "large")
    yield Site(settings, METER)
    close_broker(settings)


def done(site: Site, *words: str, code: int = 0) -> str:
    """Run a command to its expected end; return its output."""
    ended = site.command(*words)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def releases(*sites: Site) -> list[str]:
    """Return the published releases."""
    return [site.publication()["release"] for site in sites]


def rows(days: Site) -> list[tuple[object, ...]]:
    """Return the published rows of the days."""
    found = pinned(days.settings).read(f"gold.{DAYS}").collect()
    return sorted(found.select("day", "device", "readings", "litres", "marked").rows())


def expected_rows(meter: Site) -> list[tuple[object, ...]]:
    """Return the rows that the sent readings must give, without the project's code."""
    database, sent = duckdb.connect(), [item.reading for item in meter.sent if item.fate == "silver"]
    database.execute("set timezone = 'UTC'")
    database.register("sent", pl.DataFrame(sent).to_arrow())
    return sorted(database.sql(EXPECTED).pl().rows())


def wait_right(meter: Site, days: Site) -> None:
    """Wait until all is published; assert the rows of both."""
    wait_until(meter.is_published, "the source is published")
    wait_until(lambda: not sources_behind(days.settings, DAYS), "the days have followed")
    assert rows(days) == expected_rows(meter)
    meter.assert_nothing_lost()


def driver_of(site: Site) -> RunFile | None:
    """Return the driver that runs, None while there is none."""
    with suppress(OSError, ValueError):
        return read_run_file(site.settings, stream_name(site.dataset))
    return None


def kill_driver(site: Site) -> RunFile:
    """Kill the driver that runs now, with its JVM's parent; the runner starts another one."""
    run = driver_of(site)
    assert run is not None
    os.kill(run.pid, signal.SIGKILL)
    return run


def soon(holds: Callable[[], bool], what: str, within: float = 300.0) -> None:
    """Wait as `wait_until`, so closely that what begins then has not ended."""
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.002)


def seconds_between_moves(meter: Site, days: Site, command: Callable[[], subprocess.Popen[bytes]]) -> float:
    """Execute a command; return how long readers found the moved source next to a member that had not moved."""
    before, began, ended, started = releases(meter, days), 0.0, 0.0, command()
    while not ended:
        now = releases(meter, days)
        moved = [fresh != old for fresh, old in zip(now, before, strict=True)]
        assert moved != [False, True], "a member moves after its source"
        began = began or (time.monotonic() if moved[0] else 0.0)
        ended = time.monotonic() if all(moved) else 0.0
        time.sleep(0.005)
    assert started.wait(300) == 0
    return ended - began


def begun(site: Site, *words: str) -> subprocess.Popen[bytes]:
    """Begin a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "include.cli.main", *words],
        cwd=CLONE,
        env=site.environment({}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_a_joint_release_survives_kills_between_its_moves_and_during_one(meter: Site) -> None:
    days = Site(meter.settings, DAYS)
    done(meter, "up", METER, DAYS)
    meter.send(400)
    wait_right(meter, days)
    before = releases(meter, days)
    declare(meter.settings, "big")
    held = done(meter, "release", "run", "--dataset", METER, "--yes", code=REFUSED)
    assert "gold/meter_days.sql:2 reads large, which silver.meter would no longer have" in " ".join(held.split())
    assert f"--with {DAYS}" in held
    done(meter, "plan", "cancel", f"release-{METER}-1")
    plan = f"release-{METER}-2"
    with meter.sending(20, 0.5):
        done(meter, "release", "run", "--dataset", METER, "--with", DAYS, code=NOT_APPROVED)
        assert releases(meter, days) == before
        done(meter, "plan", "approve", plan)
        shown = json.loads(done(meter, "plan", "show", plan, "--json"))
        member = shown["members"][0]["release"]
        after = [shown["release"], member]
        intent = derived_run_path(meter.settings, DAYS, member)
        assert not intent.exists()

        applying = begun(meter, "plan", "apply", plan)
        soon(lambda: pending_request(meter.settings, DAYS) is not None, "the member has its request")
        killed = kill_driver(days)
        soon(lambda: releases(meter)[0] == after[0], "the source is moved")
        applying.kill()
        assert applying.wait() == -signal.SIGKILL
        assert releases(meter, days) == [after[0], before[1]]
        # A query over both reads the moved source, and of the days one earlier state.
        ((counted, litres, big),) = api.query(BOTH, settings=meter.settings).rows()
        (used,) = days.publication()["sources"].values()
        silver = DeltaTable(str(warehouse(meter.settings) / used["path"]), version=used["version"]).to_pyarrow_table()
        assert (counted, litres) == (silver.num_rows, sum(silver["litres"].to_pylist()))
        assert big > 0
        soon(lambda: driver_of(days) not in (None, killed), "the runner starts another driver")
        soon(intent.exists, "the member's new release follows the source")
        kill_driver(days)
        assert releases(meter, days) == [after[0], before[1]]
        done(meter, "plan", "apply", plan)
        assert releases(meter, days) == after
        assert pending_request(meter.settings, DAYS) is None
    wait_right(meter, days)

    with meter.sending(20, 0.5):
        back = seconds_between_moves(meter, days, lambda: begun(meter, "plan", "rollback", plan))
        assert releases(meter, days) == before
        again = seconds_between_moves(meter, days, lambda: begun(meter, "plan", "apply", plan))
        done(meter, "plan", "rollback", plan)
    print(f"\nbetween the moves: {back:.2f} s rolled back, {again:.2f} s applied again")
    assert releases(meter, days) == before
    wait_right(meter, days)
    assert (wrong := repeated_commits(warehouse(days.settings) / DAYS)) == "", wrong
    processes = json.loads(done(meter, "status", "--json"))["processes"]
    states = {each["name"]: each["state"] for each in processes if each["name"].startswith("stream")}
    assert states == {stream_name(METER): "running", stream_name(DAYS): "running"}
    for name in (METER, DAYS):
        assert "balanced" in done(meter, "audit", "--dataset", name)
    done(meter, "down")
