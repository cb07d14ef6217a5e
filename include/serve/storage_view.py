"""Storage: bytes by dataset, release and table. Every file is listed, so it is counted in the background and cached."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.observe.ended_plans import PartUse, disk_use
from include.serve.display_values import moment, size

COUNTS = ("total", "current", "replaced", "log", "deletable")
PLATFORM = "platform"
KEEP_SECONDS = 60.0
WAIT_SECONDS = 0.15
"""A page waits this long for the first count; then it reports that files are being counted."""


@dataclass(frozen=True)
class StorageLine:
    """A part of the state folder; `owner`: its dataset and release, or the platform."""

    name: str
    owner: str
    cells: Sequence[str]


@dataclass(frozen=True)
class StorageView:
    """Bytes by part and by dataset; `at` is "" while the first count is not over."""

    at: str
    lines: Sequence[StorageLine]
    totals: Sequence[str]
    datasets: Sequence[tuple[str, str, float]]
    problem: str


@dataclass
class StorageCount:
    """Counts the files of the state folder in a thread, at most once a minute."""

    settings: Settings
    _parts: Sequence[PartUse] = ()
    _problem: str = ""
    _at: datetime | None = None
    _counted: float = field(default=-KEEP_SECONDS)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None

    def view(self) -> StorageView:
        """Return the last count; begin another one when it is old."""
        with self._lock:
            old = time.monotonic() - self._counted > KEEP_SECONDS
            if old and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._count, name="storage", daemon=True)
                self._thread.start()
            thread = self._thread
        if self._at is None and thread is not None:
            thread.join(WAIT_SECONDS)
        return storage_view(self._parts, self._at, self._problem)

    def _count(self) -> None:
        try:
            self._parts, self._problem = disk_use(self.settings), ""
        except (HeadraceError, OSError) as error:
            self._problem = getattr(error, "what", str(error))
        self._at, self._counted = datetime.now(UTC), time.monotonic()


def storage_view(parts: Sequence[PartUse], at: datetime | None, problem: str) -> StorageView:
    """Return what the page shows of a count."""
    total = sum(part.total for part in parts) or 1
    by_dataset: dict[str, int] = defaultdict(int)
    for part in parts:
        by_dataset[part.part.dataset or PLATFORM] += part.total
    return StorageView(
        at=moment(at) if at else "",
        lines=[
            StorageLine(
                use.part.name,
                " ".join(filter(None, (use.part.dataset or PLATFORM, use.part.release))),
                [size(getattr(use, name)) if getattr(use, name) else "" for name in COUNTS],
            )
            for use in parts
        ],
        totals=[size(sum(getattr(use, name) for use in parts)) for name in COUNTS],
        datasets=[(name, size(n), n / total) for name, n in sorted(by_dataset.items(), key=lambda item: -item[1])],
        problem=problem,
    )
