"""A stream and a release on YARN with HDFS; an executor, the application master and the name node are killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import psutil
import pytest
from hadoop_cluster import APPLICATION_MASTER, EXECUTOR, Hadoop, hadoop_cluster
from recovery_site import Site, wait_until
from shipped_release import NEEDED, only_plan, ship_doubled_litres

pytestmark = [pytest.mark.timeout(1800), pytest.mark.extended]
WITHIN = 600.0


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    # Folders of HDFS are URIs, which have no space.
    with hadoop_cluster(tmp_path_factory.mktemp("cluster"), nodes=2) as found:
        yield found


def kill_and_await_another(hadoop: Hadoop, program: str) -> None:
    """Kill the only container of a program with SIGKILL, and wait until YARN has started another one."""
    (killed,) = hadoop.containers(program)
    killed.send_signal(signal.SIGKILL)
    psutil.wait_procs([killed], timeout=30)

    def is_replaced() -> bool:
        return any(each.pid != killed.pid for each in hadoop.containers(program))

    wait_until(is_replaced, f"YARN has started another {program}", within=WITHIN)


def test_stream_survives_its_containers_and_the_name_node_and_is_released_anew(hadoop: Hadoop, site: Site) -> None:
    driver = site.start_driver(**hadoop.settings(cores=1))
    site.wait_state("running", driver, WITHIN)
    site.send(300)
    site.wait_published(driver, WITHIN)

    site.send(300)
    kill_and_await_another(hadoop, EXECUTOR)
    site.wait_published(driver, WITHIN)

    site.send(300)
    kill_and_await_another(hadoop, APPLICATION_MASTER)
    site.wait_published(driver, WITHIN)

    hadoop.kill_files()
    site.send(300)
    site.wait_published(driver, WITHIN)
    hadoop.start_files()
    assert driver.process.poll() is None, driver.log_text()[-3000:]

    before = litres(site)
    ship_doubled_litres(site)
    released = site.command("release", "run", "--dataset", site.dataset, **hadoop.settings(cores=1))
    assert released.returncode == NEEDED, released.stdout + released.stderr
    approved = site.command("plan", "approve", only_plan(site)["id"])
    assert approved.returncode == 0, approved.stderr
    applied = site.command("plan", "apply", only_plan(site)["id"], **hadoop.settings(cores=1))
    assert applied.returncode == 0, applied.stdout + applied.stderr + driver.log_text()[-3000:]
    assert litres(site) == 2 * before > 0
    rolled_back = site.command("plan", "rollback", only_plan(site)["id"])
    assert rolled_back.returncode == 0, rolled_back.stdout + rolled_back.stderr
    assert litres(site) == before
    site.assert_nothing_lost()
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0


def litres(site: Site) -> int:
    """Return the sum over silver as published."""
    found = site.command("query", f"select sum(litres)::int as litres from silver.{site.dataset}", "--format", "json")
    assert found.returncode == 0, found.stderr
    return int(json.loads(found.stdout)[0]["litres"])
