"""What a driver says of itself: one small file, replaced about once a second, and gone over to `stopped` at the end."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path


@dataclass
class Word:
    """The driver's status: state and reason, batches, rates (rows/s), seconds of the last run's steps, lag."""

    state: str = "starting"
    reason: str | None = None
    release: str = ""
    epoch: int = 0
    pid: int = 0
    at: str = ""
    ingested_batch: int = -1
    refined_batch: int = -1
    rates: dict[str, float] = field(default_factory=dict)
    last_batch: dict[str, object] = field(default_factory=dict)
    log_end: dict[str, int] = field(default_factory=dict)
    ingested: dict[str, int] = field(default_factory=dict)
    lag_seconds: float | None = None


class Teller:
    """Writes the driver's word; `refresh` fills in what changes without anybody saying so."""

    def __init__(self, path: Path, refresh: Callable[[Word], None]) -> None:
        self.word = Word(pid=os.getpid())
        self._path = path
        self.refresh = refresh
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="telling", daemon=True)

    def start(self) -> None:
        """Begin to write once a second."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.tell(self.word.state)
        self._thread.start()

    def tell(self, state: str, reason: str | None = None) -> None:
        """Say a new state at once."""
        with self._lock:
            self.word.state, self.word.reason = state, reason
            self._write()

    def finish(self, state: str, reason: str | None = None) -> None:
        """Say the last word."""
        self._end.set()
        self.tell(state, reason)

    def _run(self) -> None:
        while not self._end.wait(1.0):
            self.refresh(self.word)
            with self._lock:
                if not self._end.is_set():
                    self._write()

    def _write(self) -> None:
        self.word.at = datetime.now(UTC).isoformat()
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(asdict(self.word)), "utf-8")
        fresh.replace(self._path)
