"""The parameters of a peer, and the handshake by which the benchmark measures its drain alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

READY, DONE = "peer: ready", "peer: done"
PATTERNS = {
    **dict.fromkeys(("user_id", "page_id", "ad_id"), "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"),
    "event_time": "^[0-9]{13}$",
}
"""The contract of `ad_events`: texts with a pattern, texts of a list, and the greatest length of an address."""
VALUES = {
    "ad_type": ("banner", "modal", "sponsored-search", "mail", "mobile"),
    "event_type": ("view", "click", "purchase"),
}
LONGEST_ADDRESS = 64
FIELDS = ("user_id", "page_id", "ad_id", "ad_type", "event_type", "event_time", "ip_address")
HORIZON_SECONDS = 3600
"""How far apart in event time two records of one `event_time` may lie, as in the dataset's `pipeline.yaml`."""


@dataclass(frozen=True)
class TopicSpan:
    """Offsets [start, end) of a topic's partitions."""

    topic: str
    start: dict[int, int]
    end: dict[int, int]


@dataclass(frozen=True)
class PeerJob:
    """A job: first drain `warm_up` into `folder/warm-up`, then `measured` into `folder/tables`; `ads`: a CSV file."""

    bootstrap: str
    warm_up: TopicSpan
    measured: TopicSpan
    folder: str
    ads: str
    cores: int
    memory: str
    jars: str

    def to_json(self) -> str:
        """Return the argument of a peer's process."""
        return json.dumps(asdict(self))


def read_job(text: str) -> PeerJob:
    """Return the job that is the argument of this process."""
    values = json.loads(text)
    for name in ("warm_up", "measured"):
        ends = {side: {int(part): at for part, at in values[name][side].items()} for side in ("start", "end")}
        values[name] = TopicSpan(values[name]["topic"], **ends)
    return PeerJob(**values)


def drain_twice(job: PeerJob, drain: Callable[[TopicSpan, Path], None]) -> None:
    """Warm up, report it and wait for a line; then drain what is measured."""
    drain(job.warm_up, Path(job.folder) / "warm-up")
    print(READY, flush=True)
    sys.stdin.readline()
    drain(job.measured, Path(job.folder) / "tables")
    print(DONE, flush=True)
