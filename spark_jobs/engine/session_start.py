"""Opens a driver's Spark session in a thread: the driver imports its code and validates its state meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from pyspark.sql import SparkSession

from include.settings import Settings
from spark_jobs.engine.spark_session import activate, open_session

Opened = Callable[[], SparkSession]
"""Waits for a session and returns it, active in the calling thread; raises what `open_session` raises."""


def begin_session(settings: Settings, name: str) -> Opened:
    """Begin to open a session, as `open_session` does; return the function that waits for it.

    A process that ends meanwhile does not wait: the JVM ends with it.
    """
    opening = Future[SparkSession]()

    def run() -> None:
        try:
            opening.set_result(open_session(settings, name))
        except Exception as error:  # noqa: BLE001  (the waiting thread raises it)
            opening.set_exception(error)

    def opened() -> SparkSession:
        session = opening.result()
        activate(session)
        return session

    threading.Thread(target=run, name="session", daemon=True).start()
    return opened
