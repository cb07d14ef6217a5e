"""Streams whose drivers sleep: each is woken when its topic no longer ends where the driver left it.

The runner asks every second. A thread looks at the topics: a broker that does not answer delays no other stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from include.ground.errors import HeadraceError
from include.ground.kafka import TopicMissing, log_end_offsets
from include.ground.settings import Settings
from include.state.run_files import bootstrap_servers
from include.state.streams import DriverStatus

LOOK_EVERY = timedelta(seconds=5)
LONGEST = timedelta(days=1)
"""A driver is woken after it at the latest: expiry and other upkeep that time makes due need it."""
Ends = Mapping[int, int]


def topic_ends(settings: Settings, topic: str) -> Ends:
    """Return where each partition of a topic ends; nothing of one that is gone, which its driver is to report."""
    try:
        return log_end_offsets(bootstrap_servers(settings), topic, timeout=2.0)
    except TopicMissing:
        return {}


@dataclass
class SleepingStreams:
    """The topics of sleeping streams, and where each ended when the thread last looked."""

    ends_of: Callable[[str], Ends]
    why_not: dict[str, str] = field(default_factory=dict)
    """By topic why it could not be looked at."""
    _looked: dict[str, tuple[datetime, Ends]] = field(default_factory=dict)
    _looks: dict[str, Future[None]] = field(default_factory=dict)
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "sleeping"))

    def is_asleep(self, left: DriverStatus, requested: datetime | None, now: datetime) -> bool:
        """Return whether the driver that `left` this status has nothing to do; a later request wakes it too."""
        if left.at is None or now - left.at > LONGEST or (requested is not None and requested > left.at):
            return False
        at, ends = self._looked.get(left.topic, (left.at, left.rests_at))
        if now - at >= LOOK_EVERY and (left.topic not in self._looks or self._looks[left.topic].done()):
            self._looks[left.topic] = self._thread.submit(self._look, left.topic)
        # A look before the driver went to sleep says nothing.
        return at <= left.at or ends == left.rests_at

    def _look(self, topic: str) -> None:
        began = datetime.now(UTC)
        try:
            self._looked[topic] = began, self.ends_of(topic)
            self.why_not.pop(topic, None)
        except Exception as error:  # noqa: BLE001  (nobody reads the thread's result: the status has the reason)
            # What the topic has got meanwhile is not known until the broker answers.
            self._looked.pop(topic, None)
            what = error.what if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
            self.why_not[topic] = f"whether topic {topic} has records is not known: {what}"
