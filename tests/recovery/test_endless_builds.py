"""A build that never ends, in the driver or in a Python worker: nothing of it is left after its end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from recovery_site import Site, wait_until
from shipped_release import only_plan

from include.ground.settings import CLONE
from include.run.child_process import GRACE, end_jobs
from include.state.run_files import job_run_files

pytestmark = [pytest.mark.timeout(600), pytest.mark.extended]
ENDLESS = {
    "driver": "    while True:\n        pass\n",
    "worker": """    import functools
    from pyspark.sql import functions as F
    def endless(value):
        while True:
            pass
    return accepted.withColumn("litres", F.udf(endless, "decimal(12,3)")("litres"))
""",
}
JVM, WORKER = "java", "pyspark.daemon"


@pytest.fixture(params=ENDLESS)
def building(site: Site, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """`headrace release run` of a folder whose silver() never ends; its processes compute."""
    driver = site.start_driver()
    site.send(200)
    site.wait_published(driver)
    driver.kill()
    path = site.settings.datasets / site.dataset / "silver.py"
    path.write_text(path.read_text("utf-8").replace("    return accepted\n", ENDLESS[request.param]))
    words = ("release", "run", "--dataset", site.dataset, "--yes")
    argv = [sys.executable, "-m", "include.cli.main", *words]
    command = subprocess.Popen(argv, cwd=CLONE, env=site.environment({}), stderr=subprocess.PIPE, text=True)
    awaited = {"driver": JVM, "worker": WORKER}[request.param]
    wait_until(lambda: any(awaited in line for line in lines(site)), "the build computes", within=120)
    yield command
    end_jobs(site.settings, print)
    command.kill()


def lines(site: Site) -> list[str]:
    found = []
    for process in processes(site):
        with suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


def processes(site: Site) -> list[psutil.Process]:
    return [process for run in job_run_files(site.settings) for process in run.job_processes()]


def test_cancel_ends_endless_build(site: Site, building: subprocess.Popen[str]) -> None:
    plan, before = only_plan(site)["id"], processes(site)
    status = json.loads(site.command("status", "--json").stdout)
    (job,) = [process for process in status["processes"] if process["name"] == f"plan:{plan}"]
    assert (job["state"], job["dataset"], job["pid"]) == ("running", site.dataset, before[0].pid)
    cancelled = site.command("plan", "cancel", plan)
    assert cancelled.returncode == 0, cancelled.stderr
    assert "cancelled" in cancelled.stdout
    gone, alive = psutil.wait_procs(before, GRACE)
    assert not alive
    assert building.wait(10) != 0


def test_endless_build_ends_with_command(site: Site, building: subprocess.Popen[str]) -> None:
    before = processes(site)
    building.kill()
    gone, alive = psutil.wait_procs(before, GRACE + 5)
    assert not alive
    assert site.command("plan", "cancel", only_plan(site)["id"]).returncode == 0
