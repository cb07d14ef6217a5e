"""Restart, wait or give up: the action for one process, given its observation, its desired state and earlier attempts.

Pure: no clock, no file, no process. All rules of supervision are in this module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar

from include.state.process_states import WORKING_STATES, ProcessState, ProcessStatus


@dataclass(frozen=True)
class Policy:
    """Restart policy; seconds, except `tries`.

    A process that exits is restarted after `first_pause`, which doubles with each failure up to `longest_pause`. It is
    given up after `tries` exits in a row without working for `healthy_after` or advancing the tables. It is killed
    `drain_within` after SIGTERM, when it was silent for `silent_within`, or when it is stalled.
    """

    first_pause: float = 1.0
    longest_pause: float = 60.0
    tries: int = 5
    healthy_after: float = 60.0
    drain_within: float = 60.0
    silent_within: float = 120.0

    def pause(self, failures: int) -> float:
        """Seconds before the next start after this many failures in a row."""
        return min(self.first_pause * 2.0 ** min(failures - 1, 30), self.longest_pause)


@dataclass(frozen=True)
class Observation:
    """One process as observed now: its own `status`, and when it was requested (None: not requested).

    `recorded`: it has a run file. `error`: why it exited. `terminal`: the error is final. `refused`: what prevents a
    start. `ready`: what it needs is available. `batch`: the last published batch. `stalled`: for how long it has made
    no progress, when that is longer than the settings allow. `asleep`: whether a driver that ended because nothing came
    still has nothing to do, then `error` says what is not known about its topic; None for any other end.
    """

    status: ProcessStatus
    desired_since: datetime | None
    recorded: bool = True
    error: str = ""
    terminal: bool = False
    refused: str = ""
    ready: bool = True
    batch: int | None = None
    stalled: str = ""
    asleep: bool | None = None


@dataclass(frozen=True)
class Attempts:
    """Earlier attempts for the request of `desired_since`; times are seconds of a monotonic clock.

    `started`: since when it runs, its exit not counted yet. `at_work`, `silent`: when it last began to work, or to be
    silent, without an interruption since.
    `drain_requested`: when SIGTERM was sent. `failures`: exits in a row. `killed`: why the runner killed it.
    """

    desired_since: datetime | None = None
    started: float | None = None
    at_work: float | None = None
    silent: float | None = None
    drain_requested: float | None = None
    killed: str = ""
    batch: int | None = None
    failures: int = 0
    restarts: int = 0
    error: str = ""
    next_try: float | None = None
    given_up: bool = False


@dataclass(frozen=True)
class Action:
    """An action and its reason."""

    reason: str
    verb: ClassVar[str] = ""


class Nothing(Action):
    """The process is in its desired state, or a pause has not elapsed."""

    verb = "unchanged"


class Start(Action):
    """Start it."""

    verb = "started"


class Drain(Action):
    """Send SIGTERM: the process finishes its batch and exits."""

    verb = "stopping"


class Kill(Action):
    """Send SIGKILL: the process ignored SIGTERM or does not report."""

    verb = "killed"


class GiveUp(Action):
    """Stop retrying until the stream is requested again."""

    verb = "given up"


class ClearRunFile(Action):
    """The process is gone and not desired: remove its run file."""

    verb = "has ended"


def reconcile(observed: Observation, before: Attempts, policy: Policy, now: float) -> tuple[Attempts, Action]:
    """Return the updated attempts and the action for a process."""
    tries = _with_desired(before, observed.desired_since)
    if observed.status.pid is None:
        return _reconcile_gone(observed, tries, policy, now)
    return _reconcile_running(observed, _with_observation(tries, observed, policy, now), policy, now)


def _with_desired(tries: Attempts, desired_since: datetime | None) -> Attempts:
    """A new request resets failures."""
    if desired_since is None or desired_since == tries.desired_since:
        return tries
    return replace(tries, desired_since=desired_since, failures=0, error="", next_try=None, given_up=False)


def _with_observation(tries: Attempts, observed: Observation, policy: Policy, now: float) -> Attempts:
    """Note a running process; forget earlier failures when it has worked long enough."""
    state = observed.status.state
    at_work = _since(tries.at_work, state in WORKING_STATES, now)
    silent = _since(tries.silent, state is ProcessState.UNKNOWN, now)
    healthy = at_work is not None and now - at_work >= policy.healthy_after
    advanced = None not in (observed.batch, tries.batch) and (observed.batch or 0) > (tries.batch or 0)
    return replace(
        tries,
        started=now if tries.started is None else tries.started,
        at_work=at_work,
        silent=silent,
        batch=tries.batch if observed.batch is None else max(observed.batch, tries.batch or 0),
        failures=0 if healthy or advanced else tries.failures,
        next_try=None,
        given_up=False,
    )


def _since(before: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _reconcile_running(observed: Observation, tries: Attempts, policy: Policy, now: float) -> tuple[Attempts, Action]:
    if tries.drain_requested is not None:
        if now - tries.drain_requested < policy.drain_within:
            return tries, Nothing("it is stopping")
        return _killed(tries, f"did not end within {policy.drain_within:.0f} s and was killed")
    if observed.desired_since is None:
        return replace(tries, drain_requested=now), Drain("it is not requested")
    if observed.stalled:
        return _killed(tries, f"{observed.stalled} and was killed")
    if tries.silent is not None and now - tries.silent >= policy.silent_within:
        return _killed(tries, f"reported nothing for {policy.silent_within:.0f} s and was killed")
    return tries, Nothing(observed.status.state.meaning)


def _killed(tries: Attempts, why: str) -> tuple[Attempts, Action]:
    return replace(tries, killed=why), Kill(why)


def _reconcile_gone(observed: Observation, tries: Attempts, policy: Policy, now: float) -> tuple[Attempts, Action]:
    if observed.status.state is ProcessState.UNKNOWN:
        # Its record is unreadable: the process may run, and there must not be two.
        return tries, Nothing(observed.status.detail)
    if observed.desired_since is None:
        done = Attempts(restarts=tries.restarts, error=tries.killed or tries.error, batch=tries.batch)
        return done, ClearRunFile("it is not requested") if observed.recorded else Nothing("it is not requested")
    if tries.drain_requested is not None:
        return _due(observed, _reset_for_next_start(tries), now)
    if observed.asleep is not None:
        error = tries.error if tries.given_up else observed.error if observed.asleep else ""
        rested = replace(_reset_for_next_start(tries), failures=0, error=error, next_try=None)
        return (rested, Nothing(observed.status.state.meaning)) if observed.asleep else _due(observed, rested, now)
    if tries.started is not None:
        return _ended(observed, _reset_for_next_start(tries), tries.killed or observed.error, policy, now)
    return _due(observed, tries, now)


def _reset_for_next_start(tries: Attempts) -> Attempts:
    """Reset what belongs to the process that exited."""
    return replace(tries, started=None, at_work=None, silent=None, drain_requested=None, killed="")


def _ended(observed: Observation, tries: Attempts, error: str, policy: Policy, now: float) -> tuple[Attempts, Action]:
    """Count a failure: a requested process exited or could not be started."""
    tries = replace(tries, failures=tries.failures + 1, error=error)
    if observed.terminal:
        return replace(tries, given_up=True), GiveUp(error)
    if tries.failures >= policy.tries:
        return replace(tries, given_up=True), GiveUp(f"it ended {tries.failures} times in a row: {error}")
    pause = policy.pause(tries.failures)
    return replace(tries, next_try=now + pause), Nothing(f"{error}; tried again in {pause:g} s")


def _due(observed: Observation, tries: Attempts, now: float) -> tuple[Attempts, Action]:
    """Start the process unless a pause or a missing prerequisite prevents it."""
    if tries.given_up:
        return tries, Nothing(tries.error)
    if tries.next_try is not None and now < tries.next_try:
        return tries, Nothing(tries.error)
    if observed.refused:
        return replace(tries, error=observed.refused, given_up=True), GiveUp(observed.refused)
    if not observed.ready:
        return tries, Nothing(
            "it waits for the broker, for the driver that it shares, or for another process to release its lease"
        )
    again, is_woken = tries.next_try is not None, observed.asleep is False
    reason = f"again: {tries.error}" if again else "there is something to do" if is_woken else "it is requested"
    return replace(tries, started=now, next_try=None, restarts=tries.restarts + again), Start(reason)
