"""A partition goes quiet, wakes with old records, hides behind a transaction; then all is quiet; drivers are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import polars as pl
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from readings import BEGUN, Sent
from recovery_site import Driver, Site, wait_until

from include.change.grains import published_watermarks
from include.ground.kafka_address import client_options
from include.ground.paths import warehouse
from include.state.streams import stream_status

LATENESS, IDLE_SECONDS = timedelta(hours=1), 3
TABLE = """
  {0}_closed:
    kind: additive
    window: {{column: read_at, size: 1 hour, as: hour}}
    keys: [device]
    refresh: on_close
    measures: {{litres: {{sum: litres}}}}
"""


def declare_idle(site: Site, more: str = "") -> None:
    """Let partitions be idle after seconds, and add a table that waits for the watermark."""
    path = site.settings.datasets / site.dataset / "pipeline.yaml"
    text = path.read_text().replace("lateness: 2 days", f"lateness: 1 hour\nidle: {IDLE_SECONDS} seconds{more}")
    path.write_text(text.rstrip("\n") + "\n" + TABLE.format(site.dataset))


@contextmanager
def producer(site: Site, **options: str) -> Iterator[Producer]:
    made = Producer({**client_options(site.bootstrap), **options, "log_level": 0})
    yield made
    assert made.flush(30) == 0


def send(site: Site, to: Producer, partition: int, hour: float) -> None:
    """Send the next reading, of `hour` hours after BEGUN."""
    number, site.sent_count = site.sent_count, site.sent_count + 1
    at = BEGUN + timedelta(hours=hour)
    row = {"event_id": f"q{number:06d}", "device": f"d{partition}", "read_at": at, "litres": 1 + number % 40}
    value = json.dumps(row | {"read_at": f"{at:%Y-%m-%dT%H:%M:%SZ}"})
    to.produce(site.dataset, key=b"any", value=value.encode(), partition=partition)
    to.flush(30)
    site.sent.append(Sent("any", value, "silver", row))


def watermark(site: Site) -> datetime | None:
    known = published_watermarks(site.settings, site.dataset) if site.publication()["batch"] >= 0 else []
    return known[-1].after if known else None


def reaches(site: Site, driver: Driver, hour: float) -> None:
    """Wait until the watermark is the lateness before `hour`, and assert that gold has what it closes."""
    until = BEGUN + timedelta(hours=hour) - LATENESS
    wait_until(lambda: site.is_published() and watermark(site) == until, f"the watermark is {until}", driver, 60)
    assert closed(site) == expected(site, until)


def closed(site: Site) -> list[tuple[object, ...]]:
    pinned = site.publication()["tables"][f"gold.{site.dataset}_closed"]
    delta = DeltaTable(str(warehouse(site.settings) / pinned["path"]), version=pinned["version"])
    return sorted(pl.DataFrame(pl.from_arrow(delta.to_pyarrow_table())).select("hour", "device", "litres").rows())


def expected(site: Site, until: datetime) -> list[tuple[object, ...]]:
    sent = pl.DataFrame([item.reading for item in site.sent])
    hours = sent.group_by(pl.col("read_at").dt.truncate("1h").alias("hour"), "device").agg(pl.sum("litres"))
    return sorted(row for row in hours.rows() if row[0] + timedelta(hours=1) <= until)


def batch(site: Site) -> int:
    return int(site.publication()["batch"])


def killed(driver: Driver) -> None:
    os.killpg(driver.process.pid, signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_a_quiet_partition_holds_nothing_back_and_every_release_has_the_same_rows(broker_settings: object) -> None:
    site = Site(broker_settings, "quiet")  # type: ignore[arg-type]
    site.prepare(partitions=3)
    declare_idle(site)
    try:
        with producer(site) as plain:
            driver = one_goes_quiet(site, plain)
            wakes_late(site, plain, driver)
            driver = all_go_quiet(site, plain, driver)
        is_not_idle_behind_a_transaction(site, driver)
        site.assert_nothing_lost()
        is_said_who_holds_it(site)
        another_release_is_the_same(site)
    finally:
        site.kill_all()


def one_goes_quiet(site: Site, plain: Producer) -> Driver:
    """Partition 2 gets one record; the others go on."""
    for partition in (0, 1, 2):
        send(site, plain, partition, 0.5)
    driver = site.start_driver()
    site.wait_published(driver)
    hour = 5.0

    def goes_on() -> bool:
        nonlocal hour
        hour += 0.25
        for partition in (0, 1):
            send(site, plain, partition, hour)
        time.sleep(0.5)
        reached = watermark(site)
        return reached is not None and reached > BEGUN + timedelta(hours=4)

    wait_until(goes_on, "the watermark passes without partition 2", driver, 60)
    site.wait_published(driver)
    assert closed(site) == expected(site, watermark(site) or BEGUN)
    return driver


def wakes_late(site: Site, plain: Producer, driver: Driver) -> None:
    """Records of partition 2 for hours that are closed correct them; nothing moves back."""
    before = watermark(site)
    assert before is not None
    rows = len(closed(site))
    for hour in (1.5, 2.5):
        send(site, plain, 2, hour)
    site.wait_published(driver)
    after = watermark(site)
    assert after is not None
    assert after >= before
    assert len(closed(site)) >= rows + 2
    assert closed(site) == expected(site, after)


def all_go_quiet(site: Site, plain: Producer, driver: Driver) -> Driver:
    """Without a record the last windows close once; drivers that are killed continue, and count anew."""
    send(site, plain, 0, 60)
    reaches(site, driver, 60)
    last = batch(site)
    time.sleep(2 * IDLE_SECONDS)
    assert batch(site) == last, "nothing is committed for ever"
    send(site, plain, 1, 70)
    site.wait_published(driver)
    killed(driver)
    driver = site.start_driver()
    reaches(site, driver, 70)
    killed(driver)
    last, driver = batch(site), site.start_driver()
    site.wait_state("running", driver)
    time.sleep(2 * IDLE_SECONDS)
    assert batch(site) == last
    return driver


def is_not_idle_behind_a_transaction(site: Site, driver: Driver) -> None:
    """A partition with an open transaction is not read to its end; after its end the watermark moves on."""
    with producer(site, **{"transactional.id": "quiet"}) as open_:
        open_.init_transactions(30)
        open_.begin_transaction()
        before = list(site.sent)
        send(site, open_, 1, 71)
        hidden, site.sent = site.sent[len(before) :], before
        with producer(site) as plain:
            send(site, plain, 0, 90)
        time.sleep(3 * IDLE_SECONDS)
        assert watermark(site) == BEGUN + timedelta(hours=70) - LATENESS, "partition 1 is not idle"
        open_.commit_transaction(30)
    site.sent += hidden
    # Its marker is an offset without a record.
    wait_until(lambda: watermark(site) == BEGUN + timedelta(hours=90) - LATENESS, "all are idle", driver, 60)
    assert closed(site) == expected(site, BEGUN + timedelta(hours=90) - LATENESS)


def is_said_who_holds_it(site: Site) -> None:
    """The row of the last hour is within the lateness: every command says that it waits, and for what."""
    closes = f"{BEGUN + timedelta(hours=91):%Y-%m-%d %H:%M:%S}"
    grains = site.command("grains", "--dataset", site.dataset)
    assert f"gold.{site.dataset}_closed: 1 rows are not closed yet" in grains.stdout, grains.stdout + grains.stderr
    assert closes in grains.stdout
    waited = site.command("wait", "--caught-up", "--dataset", site.dataset)
    assert waited.returncode == 0
    assert f"gold.{site.dataset}_closed: 1 rows are not closed yet" in waited.stderr
    found = json.loads(site.command("status", "--json").stdout)["datasets"][site.dataset]["watermark"]
    assert found["at"] == (BEGUN + timedelta(hours=90) - LATENESS).isoformat()
    assert found["held_by"] == 0
    assert {each["state"] for each in found["partitions"].values()} == {"idle"}
    assert list(found["waiting"]) == [f"gold.{site.dataset}_closed"]


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_a_driver_sleeps_when_all_is_published_and_closed_and_the_next_one_goes_on(broker_settings: object) -> None:
    site = Site(broker_settings, "sleepy")  # type: ignore[arg-type]
    site.prepare(partitions=2)
    declare_idle(site, f"\nsleep_after: {IDLE_SECONDS + 2} seconds")
    try:
        with producer(site) as plain:
            send(site, plain, 0, 0.5)
            send(site, plain, 1, 5)
            for latest, following in ((5, 20), (20, 40)):
                driver = site.start_driver()
                assert driver.wait(180) == 0
                left = stream_status(site.settings, site.dataset)
                assert (left.state, left.topic, left.rests_at) == ("asleep", site.dataset, left.log_end)
                # The windows that wait for a quiet partition are closed before.
                assert watermark(site) == (until := BEGUN + timedelta(hours=latest) - LATENESS)
                assert closed(site) == expected(site, until)
                send(site, plain, 0, following)
            site.wait_published(site.start_driver())
        site.assert_nothing_lost()
    finally:
        site.kill_all()


def another_release_is_the_same(site: Site) -> None:
    """A release that is built from the same batches, in larger runs, has the same watermark and rows."""
    before, reached = closed(site), watermark(site)
    folder = site.settings.datasets / site.dataset
    (folder / "silver.py").write_text((folder / "silver.py").read_text() + "\n# another release\n")
    done = site.command("release", "run", "--dataset", site.dataset, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (closed(site), watermark(site)) == (before, reached)
    rebuilt = site.command("ledger", "rebuild")
    assert rebuilt.returncode == 0, rebuilt.stdout
    assert watermark(site) == reached
    site.assert_nothing_lost()
