"""Streams and plans on a Spark cluster: real executors, one of them killed in mid-run, a worker added."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from recovery_site import Site, close_broker, open_broker, wait_until
from stack_tools.oracle import departures_by_carrier
from standalone_cluster import Cluster, Worker, standalone_cluster

from include.ground.settings import CLONE, Settings

pytestmark = pytest.mark.timeout(1800)
WITHIN = 900.0
SECRET = "canary7731-of-the-cluster"
DAYS = ("2013-01-01", "2013-01-03")
MOST = ("--corrupt", "0.3%", "--duplicates", "1%", "--late", "1%")
REBUILD = (
    *("backfill", "run", "--dataset", "flights", "--from", DAYS[0], "--to", DAYS[1]),
    *("--whole-history", "--json"),
)
DEPARTED = "select carrier, sum(departed)::int as flights from gold.carrier_hours group by carrier"
WITH_PYTHON = '''"""`silver.meter`: a reading, and what a Python function says of it."""

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.ground import sql_quoting


def described(at: datetime) -> str:
    return sql_quoting.sql_literal(f"{at:%H:%M}") + sql_quoting.__file__


def silver(accepted: DataFrame) -> DataFrame:
    return accepted.withColumn("described", F.udf(described, "string")("read_at"))
'''


@dataclass
class ClusterSite(Site):
    """A site whose drivers and jobs compute on a cluster."""

    more: dict[str, str] = field(default_factory=dict)

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """The environment of commands and drivers, with the cluster's settings."""
        return super().environment({**self.more, **more})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("a cluster")) as found:
        yield found


@pytest.fixture
def flights(tmp_path: Path, cluster: Cluster) -> Iterator[ClusterSite]:
    settings = Settings(state=tmp_path / "a state", datasets=CLONE / "include" / "datasets", driver_memory="1g")
    site = ClusterSite(settings, "flights", more=cluster.settings())
    try:
        open_broker(settings)
        yield site
    finally:
        site.kill_all()
        close_broker(settings)


@pytest.fixture
def without_the_secret(broker_settings: Settings) -> Iterator[Site]:
    """Another stream of the same broker."""
    place = Site(broker_settings, "without_the_secret")
    place.prepare()
    yield place
    place.kill_all()


def send(site: Site, day: str, until: str) -> None:
    sent = site.command("produce", "flights", "--from", day, "--to", until, *MOST, "--quiet")
    assert sent.returncode == 0, sent.stderr


def kill_executor_at_work(worker: Worker) -> None:
    """Kill the worker's executor, with SIGKILL, while it computes a task."""
    begun, (executor,) = worker.tasks_begun(), worker.executors()
    wait_until(lambda: worker.tasks_begun() > begun, "the executor has begun a task", within=WITHIN)
    executor.send_signal(signal.SIGKILL)


def carriers_in_gold(site: Site) -> dict[str, int]:
    found = site.command("query", DEPARTED, "--format", "json")
    assert found.returncode == 0, found.stderr
    return {row["carrier"]: row["flights"] for row in json.loads(found.stdout) if row["flights"]}


@pytest.mark.extended
def test_executor_killed_in_mid_run_and_worker_added_lose_and_double_nothing(
    cluster: Cluster, flights: ClusterSite
) -> None:
    workers = [cluster.add_worker(), cluster.add_worker()]
    driver = flights.start_driver()
    flights.wait_state("running", driver, WITHIN)
    assert [len(worker.executors()) for worker in workers] == [1, 1]
    send(flights, *DAYS)
    kill_executor_at_work(workers[0])
    flights.wait_published(driver, WITHIN)
    assert "Lost executor" in driver.log_text()

    # The stream holds two cores; the plan's job gets the third.
    added = cluster.add_worker()
    verified = flights.command(*REBUILD)
    assert verified.returncode == 0, verified.stderr + driver.log_text()[-3000:]
    plan = json.loads(verified.stdout)
    assert (plan["stage"], plan["events"][-1]["result"]["changed"]) == ("applied", 0)
    assert added.tasks_begun() > 0, "the plan's job ran on the new worker"

    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    # The driver's process computes the same tables anew, without a cluster.
    alone = flights.command(*REBUILD, HEADRACE_SPARK_MASTER="", HEADRACE_SPARK_CONF="{}")
    assert alone.returncode == 0, alone.stdout + alone.stderr
    plan = json.loads(alone.stdout)
    assert (plan["stage"], plan["events"][-1]["result"]["changed"]) == ("applied", 0)
    audited = flights.command("audit", "--dataset", "flights", "--deep")
    assert audited.returncode == 0, audited.stdout + audited.stderr
    since, until = (datetime.fromisoformat(f"{day}T00:00") for day in DAYS)
    assert carriers_in_gold(flights) == departures_by_carrier(since, until)


@pytest.mark.extended
def test_python_function_of_silver_runs_on_executors_with_our_code_in_utc(cluster: Cluster, site: Site) -> None:
    (site.settings.datasets / site.dataset / "silver.py").write_text(WITH_PYTHON, "utf-8")
    cluster.add_worker()
    driver = site.start_driver(**cluster.settings(cores=1))
    site.wait_state("running", driver, WITHIN)
    site.send(300)
    site.wait_published(driver, WITHIN)
    site.assert_nothing_lost()
    first = min(item.reading["read_at"] for item in site.sent if item.fate == "silver")
    query = f"select described from silver.{site.dataset} order by read_at limit 1"
    (found,) = json.loads(site.command("query", query, "--format", "json").stdout)
    time, module = found["described"].rsplit("'", 1)
    assert time == f"'{first.astimezone(UTC):%H:%M}"
    assert ".zip/include/" in module, "the driver's own code, not what is installed on the worker"


def test_cluster_with_authentication_runs_a_stream_and_refuses_who_lacks_the_secret(
    tmp_path: Path, site: Site, without_the_secret: Site
) -> None:
    (tmp_path / "cluster").mkdir()
    with standalone_cluster(tmp_path / "cluster", SECRET) as cluster:
        cluster.add_worker()
        driver = site.start_driver(**cluster.settings(cores=1))
        # Spark asks the master three times in a minute before it gives up.
        refused = without_the_secret.start_driver(**cluster.settings(cores=1, with_secret=False))
        site.wait_state("running", driver, WITHIN)
        site.send(300)
        site.wait_published(driver, WITHIN)
        site.assert_nothing_lost()
        assert command_lines_with(SECRET) == []
        driver.send(signal.SIGTERM)
        assert driver.wait() == 0
        assert SECRET not in driver.log_text()

        assert refused.wait() != 0
        assert "All masters are unresponsive" in refused.log_text()
        assert (cluster.folder / "master.log").read_text("utf-8", "replace").count("Registering app") == 1


def command_lines_with(text: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if text in (line := " ".join(process.cmdline())):
                found.append(line)
    return found
