"""A driver's session is opened in a thread: its errors reach the driver, and the driver's thread gets its settings."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from include.ground.errors import Terminal
from include.ground.java import JavaMissing
from include.ground.settings import Settings
from spark_jobs.backends.spark_session import activate, begin_session


def test_error_of_the_thread_reaches_who_waits_for_the_session(tmp_path: Path) -> None:
    opened = begin_session(Settings(state=tmp_path / "state", jars=tmp_path / "no-jars"), "test")
    with pytest.raises(Terminal, match="no-jars") as refused:
        opened()
    assert refused.value.code == "jars-missing"


def test_session_of_another_thread_becomes_the_active_one(spark: SparkSession) -> None:
    assert spark._jvm is not None
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession

    def active() -> tuple[bool, bool]:
        before = sessions.getActiveSession().isDefined()
        activate(spark)
        return before, sessions.getActiveSession().isDefined()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(active).result() == (False, True)


REFUSED_AT_ONCE = """
from pathlib import Path
from include.ground.settings import Settings
from spark_jobs.backends.spark_session import begin_session
begin_session(Settings(state=Path(STATE), driver_jvm="-Djavax.net.ssl.trustStorePassword=hidden"), "refused")
"""


def test_process_that_ends_while_its_session_opens_leaves_no_secret_options(tmp_path: Path) -> None:
    code = REFUSED_AT_ONCE.replace("STATE", repr(str(tmp_path)))
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
    assert (tmp_path / "spark").is_dir()
    assert list((tmp_path / "spark").glob("*.properties")) == []


def test_driver_without_java_names_it_and_starts_no_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    opened = begin_session(Settings(state=tmp_path / "state"), "test")
    with pytest.raises(JavaMissing, match="no-java"):
        opened()
    assert not (tmp_path / "state").exists()


def test_driver_begins_its_session_before_it_imports_its_code() -> None:
    code = "import sys, spark_jobs.jobs.stream_job; print({'duckdb', 'pyarrow', 'sqlalchemy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
