"""The priority of the thread that compacts."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_jobs.stream.upkeep import NICENESS, lower_priority


@pytest.mark.parametrize(("before", "after"), [(0, NICENESS), (NICENESS, NICENESS), (19, 19)])
def test_priority_is_lowered_and_never_raised(before: int, after: int) -> None:
    """A process that was started with `nice` may not raise it."""

    def lowered() -> int:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(before, os.getpriority(os.PRIO_PROCESS, thread)))
        lower_priority()
        return os.getpriority(os.PRIO_PROCESS, thread)

    own = os.getpriority(os.PRIO_PROCESS, 0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lowered).result() == max(own, after)
