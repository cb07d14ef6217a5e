"""Readers while something moves: silver and gold are read again and again, each time as one publication has them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from site_of_recovery import Site

from include.reading import pinned

Sums = tuple[int, int]
"""Litres in silver, and in gold by the hour."""


class Poll:
    """Each read must show one of the allowed states of both layers, never a mix of them."""

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
    def going_on(self) -> Iterator[None]:
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

    def refuse_mixes(self) -> None:
        """Every read showed an allowed state, and each of them was seen."""
        assert set(self.reads) == set(self.states), (set(self.reads), self.states)
