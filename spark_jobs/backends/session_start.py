"""Opens a driver's Spark session in a thread: the driver imports its code and validates its state meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

from include.ground.java import find_java
from include.ground.settings import Settings
from spark_jobs.backends.spark_session import open_session

Opened = Callable[[], SparkSession]
"""Waits for a session and returns it, active in the calling thread; raises JavaMissing and as `open_session`."""


def begin_session(settings: Settings, name: str) -> Opened:
    """Begin to open a session, as `open_session` does; return the function that waits for it.

    A process that ends meanwhile waits too: the file with Spark's secret options is removed once Spark has read it.
    """

    def opening() -> SparkSession:
        find_java(os.environ)
        return open_session(settings, name)

    pool = ThreadPoolExecutor(1, "session")
    running = pool.submit(opening)
    pool.shutdown(wait=False)

    def opened() -> SparkSession:
        session = running.result()
        activate(session)
        return session

    return opened


def activate(session: SparkSession) -> None:
    """Make a session that another thread has opened the active one of this thread, whose queries get its settings."""
    assert session._jvm is not None
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
