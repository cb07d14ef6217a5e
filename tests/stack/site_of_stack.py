"""The whole platform in a state folder of its own: broker, runner, stream, Airflow; ended in any case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import psutil
from airflow_page import AT_MOST, AirflowPage
from deltalake import DeltaTable

from include.ground.paths import plan_path
from include.ground.settings import CLONE, Settings
from include.plans.journal import newest_plans
from include.plans.plan import PlanRecord
from include.read.publication import Publication, read_publication, tables_of
from include.state.process_states import AIRFLOW, CONSOLE, stream_name
from include.state.run_files import read_run_file

DATASET = "flights"
# Drivers and builds of these tests live for a minute: the optimising compiler costs more than it gains.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"


@dataclass(frozen=True)
class Stack:
    """One platform, used by commands and by Airflow's REST API."""

    settings: Settings

    @cached_property
    def page(self) -> AirflowPage:
        """Airflow's REST API, logged in."""
        return AirflowPage(self.settings)

    def command(self, *words: str, within: float = AT_MOST) -> subprocess.CompletedProcess[str]:
        """Run `headrace …` and return how it ended."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "AIRFLOW"))}
        mine = {
            "HEADRACE_STATE": str(self.settings.state),
            "HEADRACE_JARS": str(self.settings.jars),
            "HEADRACE_FILES": str(self.settings.files),
            "HEADRACE_DRIVER_MEMORY": "1g",
            "HEADRACE_DRIVER_JVM": SHORT_LIVED,
        }
        argv = [sys.executable, "-m", "include.cli.main", *words]
        return subprocess.run(
            argv, cwd=CLONE, env=plain | mine, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=within, check=False,
        )  # fmt: skip

    def output_of(self, *words: str) -> str:
        """Run `headrace …`, which must succeed, and return what it printed."""
        ended = self.command(*words)
        assert ended.returncode == 0, f"headrace {' '.join(words)}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        return ended.stdout

    def feed(self, since: str, until: str) -> None:
        """Send real flights of some days, and wait until they are published."""
        self.output_of("produce", DATASET, "--from", since, "--to", until)
        self.output_of("wait", "--caught-up", "--dataset", DATASET)

    def publication(self) -> Publication:
        """Return the current publication."""
        return read_publication(self.settings, DATASET)

    def lose(self, table: str, where: str) -> None:
        """Delete rows of a table, as a user error would, while no stream runs."""
        DeltaTable(str(tables_of(self.settings, self.publication())[table].path)).delete(where)

    def is_balanced(self) -> bool:
        """Whether the audit is balanced."""
        return self.command("audit", "--dataset", DATASET).returncode == 0

    def plans(self, origin: str) -> list[PlanRecord]:
        """Return the plans with this origin."""
        return [record for record in newest_plans(self.settings).plans if record.plan.origin == origin]

    def plan_files(self) -> set[str]:
        """Every file of every plan."""
        folder = plan_path(self.settings, "none").parent
        return {str(path.relative_to(folder)) for path in folder.glob("[!.]*/*") if path.name != "lock"}

    def stream_pid(self) -> int | None:
        """The stream's process, None when there is none."""
        run = read_run_file(self.settings, stream_name(DATASET))
        return run.pid if run is not None and psutil.pid_exists(run.pid) else None

    def drivers(self) -> list[int]:
        """Every process on the machine that is a driver of this state folder's stream."""
        return [
            process.pid
            for process, words in self._ours()
            if words[-3:] == ["-m", "spark_jobs.jobs.stream_job", DATASET]
        ]

    def part(self, name: str) -> psutil.Process:
        """A part of Airflow: a child of the process that keeps them."""
        pid = self.pid_of(name)
        assert pid is not None, f"Airflow has no {name}"
        return psutil.Process(pid)

    def pid_of(self, name: str) -> int | None:
        """The process of a part of Airflow, None while it has none."""
        run = read_run_file(self.settings, AIRFLOW)
        assert run is not None
        for child in psutil.Process(run.pid).children():
            with suppress(psutil.Error):
                line = " ".join(child.cmdline())
                if name in line or name.replace("-", "_") in line:
                    return child.pid
        return None

    def console(self) -> psutil.Process:
        """The console, whose API Airflow speaks to and whose children the builds are."""
        run = read_run_file(self.settings, CONSOLE)
        assert run is not None
        return psutil.Process(run.pid)

    def jobs(self) -> list[psutil.Process]:
        """Builds of plans that run for this state folder."""
        return [p for p, words in self._ours() if any(word.startswith("spark_jobs.jobs.slice_job") for word in words)]

    def session(self) -> list[psutil.Process]:
        """Every process of Airflow's session."""
        run = read_run_file(self.settings, AIRFLOW)
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if run is not None and os.getsid(process.pid) == run.pid:
                    found.append(process)
        return found

    def _ours(self) -> list[tuple[psutil.Process, list[str]]]:
        """Return the processes of this state folder with their command lines; one that ends meanwhile is left out."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("HEADRACE_STATE") == str(self.settings.state) and process.name() != "java":
                    found.append((process, process.cmdline()))
        return found

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the processes as `headrace status` shows them, by name."""
        answer = json.loads(self.output_of("status", "--json"))
        return {process["name"]: process for process in answer["processes"]}


def await_that(holds: Callable[[], bool], what: str, within: float = AT_MOST) -> None:
    """Wait until `holds`."""
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, f"{within:.0f} s passed before {what}"
        time.sleep(0.25)
