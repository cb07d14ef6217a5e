"""Service levels of a stream: when a watch ends because it failed, breached its level, or was released."""

from __future__ import annotations

from dataclasses import dataclass, field

from include.declare.event_times import utc_text
from include.observe.dataset_health import StreamHealth
from include.state.process_states import ProcessState

FAILED, BREACHED, RELEASED = "failed", "breached", "released"
# States in which nothing is refined or the state is unknown; each may be brief.
IDLE = {
    *(ProcessState.HALTED, ProcessState.UNKNOWN, ProcessState.CRASHED, ProcessState.LOST),
    *(ProcessState.PENDING, ProcessState.STARTING),
}


@dataclass(frozen=True)
class LagLimit:
    """A service level: `lag_seconds` behind at most, and no breach for longer than `grace_seconds`."""

    lag_seconds: float
    grace_seconds: float


@dataclass(frozen=True)
class WatchResult:
    """Why the watch ended: FAILED, BREACHED or RELEASED, with a reason."""

    outcome: str
    why: str


@dataclass
class ServiceLevelMonitor:
    """Evaluates one stream repeatedly; remembers when each breach began (monotonic seconds)."""

    limits: LagLimit
    since: dict[str, float] = field(default_factory=dict)

    def evaluate(self, health: StreamHealth, now: float) -> WatchResult | None:
        """Return the result that ends the watch, None while there is none."""
        if (ended := end_of_watch(health)) is not None:
            return ended
        breaches = current_breaches(health, self.limits.lag_seconds)
        self.since = {name: self.since.get(name, now) for name in breaches}
        lasting = [breaches[name] for name, since in self.since.items() if now - since > self.limits.grace_seconds]
        return (
            WatchResult(BREACHED, f"{lasting[0]}, for more than {self.limits.grace_seconds:g} s") if lasting else None
        )


def end_of_watch(health: StreamHealth) -> WatchResult | None:
    """Return the result that ends a watch at once: the stream was released, or gave up."""
    if not health.desired:
        return WatchResult(RELEASED, f"{health.dataset} is no longer requested: {health.requested_by} withdrew it")
    if health.state is ProcessState.FAILED:
        return WatchResult(FAILED, f"the stream of {health.dataset} gave up: {health.reason}")
    return None


def current_breaches(health: StreamHealth, lag_seconds: float) -> dict[str, str]:
    """Return what breaches the level now, by its kind; each may be brief."""
    found = {}
    if health.state in IDLE or health.state.terminal:
        found["state"] = f"the stream of {health.dataset} is {health.state.label}: {health.reason or 'no reason given'}"
    if health.lag_seconds is not None and health.lag_seconds > lag_seconds:
        found["lag"] = f"{health.dataset} is {health.lag_seconds:.0f} s behind, {lag_seconds:g} are allowed"
    if health.runner.terminal or health.runner is ProcessState.LOST:
        found["runner"] = f"the runner, which keeps {health.dataset} running, is {health.runner.label}"
    return found


def health_line(health: StreamHealth) -> str:
    """Return a stream's health as one line."""
    seconds = "" if health.lag_seconds is None else f" / {health.lag_seconds:.1f} s"
    watermark = "" if health.watermark is None else f", complete up to {utc_text(health.watermark, 'minutes')} UTC"
    rejected = "" if health.rejected_share is None else f", {health.rejected_share:.2%} rejected"
    reason = f" ({health.reason})" if health.reason else ""
    state = f"{health.dataset}: {health.state.label}{reason}, batch {health.batch}"
    return f"{state}, {_behind(health)}{seconds} behind{watermark}{rejected}"


def _behind(health: StreamHealth) -> str:
    """Return the backlog: records in Kafka, or published batches of the sources."""
    if health.sources_behind is None:
        return "lag unknown" if health.lag_records is None else f"{health.lag_records:,} records"
    counts = [("all" if count is None else f"{count:,}", table) for table, count in health.sources_behind.items()]
    return ", ".join(f"{count} batches of {table}" for count, table in counts) or "0 batches"
