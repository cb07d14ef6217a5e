"""Reads silver and gold of one publication repeatedly while a test moves the publication."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from recovery_site import Site

from include.read.published_tables import pinned

Sums = tuple[int, int]
"""Sum of litres in silver, and in gold's hours."""


class PollingReader:
    """Each read must return one of the allowed states of both layers, never a mix."""

    def __init__(self, site: Site, *states: Sums) -> None:
        self.site, self.states = site, states
        self.reads: list[Sums] = []
        self.is_alive = True

    def read(self) -> Sums:
        reading, name = pinned(self.site.settings), self.site.dataset
        silver = reading.read(f"silver.{name}", columns=["litres"]).sum().collect().item()
        gold = reading.read(f"gold.{name}_hours", columns=["litres"]).sum().collect().item()
        self.reads.append((silver, gold))
        return silver, gold

    @contextmanager
    def polling(self) -> Iterator[None]:
        enough = threading.Event()

        def poll() -> None:
            try:
                while not enough.is_set():
                    self.read()
            finally:
                self.is_alive = False

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(poll)
            try:
                yield
            finally:
                enough.set()
            reading.result()

    def assert_no_mixes(self) -> None:
        """Assert that every read returned an allowed state, and that each state was read."""
        assert set(self.reads) == set(self.states), (set(self.reads), self.states)
