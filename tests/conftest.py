"""Fixtures of all tests: settings with a state folder per test, and one Spark session per run."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from case_budgets import CaseBudgets
from pyspark.sql import SparkSession

from include.ground.settings import Settings
from spark_jobs.backends.spark_session import open_session

# Tests that need the console start it themselves.
os.environ.setdefault("HEADRACE_CONSOLE", "off")
# Many small and different queries: the optimising compiler costs more than it saves.
# Without the optimising compiler the code cache has 48 MB, which delta-spark fills: what comes later is interpreted.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
QUICK = "not extended"
"""What `make test` selects."""
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Options without which Spark compiles Java for each query: a fifth of the JVM's time where a query has some rows."""
SIZES = "HEADRACE_TEST_"
"""Variables of tests begin so: seeds and counts. Test modules read them when they are imported."""


def pytest_configure(config: pytest.Config) -> None:
    """Measure the groups, in the process that reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(CaseBudgets())


def pytest_internalerror(excrepr: object) -> None:
    """Write an internal error once more when its process ends: what follows it may be longer than a log keeps."""
    atexit.register(print, f"tests: internal error in process {os.getpid()}:\n{excrepr}", file=sys.stderr, flush=True)


def pytest_collection_finish() -> None:
    """Leave the collected tests out of Python's garbage collections, and their variables out of the environment.

    Python collects its oldest objects only once their number has grown by a quarter. With thousands of tests among
    them it never did, and frames of errors kept data frames, whose broadcast tables filled the heap of the session.
    """
    gc.collect()
    gc.freeze()
    # The platform refuses variables that are no settings.
    for name in [each for each in os.environ if each.startswith(SIZES)]:
        del os.environ[name]


def pytest_unconfigure() -> None:
    """Return the objects to garbage collection: DuckDB reports those that outlive the interpreter, on 40 lines."""
    gc.unfreeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write why a worker ends before its tests do."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        why = session.shouldstop or session.shouldfail or "see the internal error above"
        print(f"tests: worker {worker} ends with status {exitstatus}: {why}", file=sys.stderr, flush=True)


@pytest.fixture(scope="session", autouse=True)
def disk_is_not_awaited() -> Iterator[None]:
    """Force nothing to disk in this process, which takes milliseconds a file: a test loses no power.

    Tests of what is forced stand in for `os.fsync` themselves; processes that tests start do force it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """One session for all cases and parity tests, with the settings that drivers use, delta-spark included."""
    state = tmp_path_factory.mktemp("spark state")
    session = open_session(Settings(state=state, driver_memory="2g", driver_jvm=QUICK_JVM), "tests", delta=True)
    for option, value in INTERPRETED.items() if request.config.option.markexpr == QUICK else ():
        session.conf.set(option, value)
    yield session
    session.stop()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a state folder per test; its name has a space on purpose."""
    return Settings(state=tmp_path / "a state")
