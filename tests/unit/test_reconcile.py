"""Restart, wait or give up: every rule of supervision as a sequence of observations, without a process."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.run import reconcile as module
from include.run.reconcile import (
    Action,
    Attempts,
    ClearRunFile,
    Drain,
    GiveUp,
    Kill,
    Nothing,
    Observation,
    Policy,
    Start,
    reconcile,
)
from include.state.process_states import WORKING_STATES, ProcessState, ProcessStatus

NAME = "stream:flights"
REQUESTED = datetime(2026, 1, 2, tzinfo=UTC)
REQUESTED_AGAIN = REQUESTED + timedelta(hours=1)
POLICY = Policy(first_pause=1.0, longest_pause=6.0, tries=5, healthy_after=60.0, drain_within=30.0, silent_within=120.0)
ENDED = [ProcessState.ASLEEP, ProcessState.STOPPED, ProcessState.FAILED, ProcessState.CRASHED]
PRESENT = [state for state in ProcessState if state not in ENDED and state is not ProcessState.PENDING]


def observation(state: ProcessState, desired_since: datetime | None = REQUESTED, **more: object) -> Observation:
    """A process in `state`: with a pid when that state has one."""
    pid = None if state in ENDED else 7
    recorded = state is not ProcessState.STOPPED
    base = Observation(ProcessStatus(NAME, pid, state), desired_since, recorded=recorded)
    return replace(base, **more)  # type: ignore[arg-type]


@dataclass
class Timeline:
    """One process over time: each decision follows from all observations before it."""

    policy: Policy = POLICY
    tries: Attempts = field(default_factory=Attempts)
    now: float = 1000.0

    def observe(self, what: Observation, after: float = 0.0) -> Action:
        self.now += after
        self.tries, action = reconcile(what, self.tries, self.policy, self.now)
        return action

    def await_start(self, **more: object) -> None:
        """Wait until the process is started."""
        for _ in range(1000):
            if isinstance(self.observe(observation(ProcessState.CRASHED, **more), 0.5), Start):
                return
        raise AssertionError("the process is never started")

    def fail_once(self, why: str = "it was killed by SIGKILL", **more: object) -> Action:
        """Wait for the start, observe the process starting, then its end."""
        self.await_start(error=why, **more)
        self.observe(observation(ProcessState.STARTING), 0.2)
        return self.observe(observation(ProcessState.CRASHED, error=why, **more), 1)


def test_requested_process_that_is_not_running_is_started_once() -> None:
    timeline = Timeline()
    assert isinstance(timeline.observe(observation(ProcessState.STOPPED)), Start)
    for state in (ProcessState.STARTING, ProcessState.RUNNING):
        assert isinstance(timeline.observe(observation(state), 1), Nothing)


def test_process_that_crashed_before_the_runner_started_is_started_at_once() -> None:
    assert isinstance(Timeline().observe(observation(ProcessState.CRASHED, error="pid 7 is gone")), Start)
    assert isinstance(Timeline().observe(observation(ProcessState.FAILED, error="x", terminal=True)), Start)


def test_running_process_is_left_alone() -> None:
    for state in PRESENT:
        assert isinstance(Timeline().observe(observation(state)), Nothing), state


def test_unrequested_process_is_drained_once_and_cleared() -> None:
    for state in PRESENT:
        timeline = Timeline()
        assert isinstance(timeline.observe(observation(state, None)), Drain)
        assert isinstance(timeline.observe(observation(ProcessState.DRAINING, None), 1), Nothing)
        assert isinstance(timeline.observe(observation(ProcessState.STOPPED, None, recorded=True), 1), ClearRunFile)
        assert isinstance(timeline.observe(observation(ProcessState.STOPPED, None), 1), Nothing)


@pytest.mark.parametrize("state", ENDED)
def test_unrequested_process_is_never_started(state: ProcessState) -> None:
    timeline = Timeline()
    for _ in range(20):
        assert isinstance(timeline.observe(observation(state, None), 10), ClearRunFile | Nothing)


def test_process_that_does_not_drain_is_killed_at_the_deadline() -> None:
    timeline = Timeline()
    timeline.observe(observation(ProcessState.RUNNING, None))
    assert isinstance(timeline.observe(observation(ProcessState.DRAINING, None), 29.9), Nothing)
    killed = timeline.observe(observation(ProcessState.DRAINING, None), 0.1)
    assert isinstance(killed, Kill)
    assert "did not end within 30 s" in killed.reason
    timeline.observe(observation(ProcessState.CRASHED, None), 1)
    assert "did not end within 30 s" in timeline.tries.error
    assert timeline.tries.failures == 0


def test_process_requested_while_draining_ends_then_restarts_without_a_pause() -> None:
    timeline = Timeline()
    timeline.observe(observation(ProcessState.RUNNING))
    timeline.observe(observation(ProcessState.RUNNING, None), 1)
    assert isinstance(timeline.observe(observation(ProcessState.DRAINING, REQUESTED_AGAIN), 1), Nothing)
    assert isinstance(timeline.observe(observation(ProcessState.STOPPED, REQUESTED_AGAIN), 1), Start)
    assert (timeline.tries.failures, timeline.tries.restarts) == (0, 0)


def test_pauses_double_up_to_the_longest() -> None:
    assert [POLICY.pause(failures) for failures in range(1, 6)] == [1, 2, 4, 6, 6]
    assert Policy(longest_pause=60).pause(10_000) == 60


def test_process_is_restarted_when_its_pause_ends_and_not_before() -> None:
    timeline = Timeline(replace(POLICY, tries=99))
    for pause in (1.0, 2.0, 4.0, 6.0, 6.0):
        waits = timeline.fail_once("no such thing")
        assert isinstance(waits, Nothing)
        assert f"tried again in {pause:g} s" in waits.reason
        assert timeline.tries.next_try == timeline.now + pause
        assert isinstance(
            timeline.observe(observation(ProcessState.CRASHED, error="no such thing"), pause - 0.01), Nothing
        )
        assert isinstance(timeline.observe(observation(ProcessState.CRASHED, error="no such thing"), 0.01), Start)
        timeline.observe(observation(ProcessState.STARTING), 0.1)
        timeline.tries = replace(timeline.tries, started=None)  # only the time of the start matters


def test_process_is_given_up_after_five_failures_with_its_last_error() -> None:
    timeline = Timeline()
    ends = [timeline.fail_once(f"end {number}") for number in range(1, 6)]
    assert [type(end) for end in ends] == [Nothing, Nothing, Nothing, Nothing, GiveUp]
    assert (timeline.tries.given_up, timeline.tries.error, timeline.tries.restarts) == (True, "end 5", 4)
    for _ in range(50):
        assert isinstance(timeline.observe(observation(ProcessState.CRASHED, error="end 5"), 100), Nothing)


def test_new_request_retries_at_once_with_all_tries() -> None:
    timeline = Timeline()
    for number in range(5):
        timeline.fail_once(f"end {number}")
    assert isinstance(timeline.observe(observation(ProcessState.CRASHED, REQUESTED_AGAIN, error="end 4"), 1), Start)
    assert (timeline.tries.given_up, timeline.tries.failures, timeline.tries.error) == (False, 0, "")


def test_new_request_does_not_disturb_a_running_process() -> None:
    timeline = Timeline()
    timeline.observe(observation(ProcessState.RUNNING))
    assert isinstance(timeline.observe(observation(ProcessState.RUNNING, REQUESTED_AGAIN), 1), Nothing)


def test_new_request_cuts_a_pause_short() -> None:
    timeline = Timeline(replace(POLICY, tries=99))
    for number in range(4):
        timeline.fail_once(f"end {number}")
    assert isinstance(timeline.observe(observation(ProcessState.CRASHED, REQUESTED_AGAIN)), Start)


def test_terminal_error_is_not_retried() -> None:
    timeline = Timeline()
    end = timeline.fail_once("the checkpoint is damaged", terminal=True)
    assert isinstance(end, GiveUp)
    assert timeline.tries.error == "the checkpoint is damaged"
    assert isinstance(timeline.observe(observation(ProcessState.FAILED, error="x", terminal=True), 999), Nothing)


def test_failed_start_counts_as_an_end() -> None:
    timeline = Timeline()
    timeline.observe(observation(ProcessState.STOPPED))
    waits = timeline.observe(observation(ProcessState.STOPPED, error="no space left"), 0.2)
    assert isinstance(waits, Nothing)
    assert timeline.tries.error == "no space left"
    timeline = Timeline()
    timeline.observe(observation(ProcessState.STOPPED))
    assert isinstance(
        timeline.observe(observation(ProcessState.STOPPED, error="java: not found", terminal=True), 0.2), GiveUp
    )


@pytest.mark.parametrize("state", sorted(WORKING_STATES, key=lambda state: state.label))
def test_healthy_period_resets_the_failures(state: ProcessState) -> None:
    timeline = Timeline()
    for number in range(4):
        timeline.fail_once(f"end {number}")
    timeline.await_start()
    timeline.observe(observation(state), 1)
    timeline.observe(observation(state), 59.9)
    assert timeline.tries.failures == 4
    timeline.observe(observation(state), 0.1)
    assert timeline.tries.failures == 0
    assert timeline.tries.error == "end 3", "the last error stays visible"


def test_interruption_restarts_the_healthy_period() -> None:
    timeline = Timeline()
    timeline.fail_once()
    timeline.await_start()
    timeline.observe(observation(ProcessState.RUNNING), 1)
    timeline.observe(observation(ProcessState.UNKNOWN), 50)
    timeline.observe(observation(ProcessState.RUNNING), 1)
    timeline.observe(observation(ProcessState.RUNNING), 59)
    assert timeline.tries.failures == 1


def test_process_that_makes_progress_is_never_given_up() -> None:
    timeline = Timeline()
    for batch in range(30):
        timeline.await_start()
        timeline.observe(observation(ProcessState.RUNNING, batch=batch), 1)
        timeline.observe(observation(ProcessState.RUNNING, batch=batch + 1), 1)
        assert isinstance(timeline.observe(observation(ProcessState.CRASHED, error="end"), 1), Nothing)
    assert not timeline.tries.given_up


def test_batch_found_at_the_start_is_no_progress() -> None:
    timeline = Timeline()
    for _ in range(5):
        timeline.await_start()
        timeline.observe(observation(ProcessState.STARTING, batch=None), 1)
        timeline.observe(observation(ProcessState.RUNNING, batch=41), 1)
        end = timeline.observe(observation(ProcessState.CRASHED, error="end"), 1)
    assert isinstance(end, GiveUp)


def test_silent_process_is_killed_and_restarted() -> None:
    timeline = Timeline()
    timeline.observe(observation(ProcessState.RUNNING))
    timeline.observe(observation(ProcessState.UNKNOWN), 1)
    assert isinstance(timeline.observe(observation(ProcessState.UNKNOWN), 119.9), Nothing)
    assert isinstance(timeline.observe(observation(ProcessState.UNKNOWN), 0.1), Kill)
    timeline.observe(observation(ProcessState.CRASHED, error="it was killed by SIGKILL"), 1)
    assert "reported nothing for 120 s" in timeline.tries.error
    assert isinstance(timeline.observe(observation(ProcessState.CRASHED), 1), Start)


def test_intermediate_status_resets_the_silence_timeout() -> None:
    timeline = Timeline()
    for _ in range(10):
        assert isinstance(timeline.observe(observation(ProcessState.UNKNOWN), 60), Nothing)
        assert isinstance(timeline.observe(observation(ProcessState.RUNNING), 60), Nothing)


def test_unreadable_run_file_starts_nothing() -> None:
    unreadable = Observation(ProcessStatus(NAME, None, ProcessState.UNKNOWN, "cannot be read"), REQUESTED)
    timeline = Timeline()
    for _ in range(10):
        assert isinstance(timeline.observe(unreadable, 100), Nothing)
        assert isinstance(timeline.observe(replace(unreadable, desired_since=None), 100), Nothing)


def test_process_waits_for_its_requirements_without_failing() -> None:
    timeline = Timeline()
    for _ in range(100):
        assert isinstance(timeline.observe(observation(ProcessState.STOPPED, ready=False), 10), Nothing)
    assert timeline.tries.failures == 0
    assert isinstance(timeline.observe(observation(ProcessState.STOPPED), 1), Start)


def test_refused_process_is_given_up_with_the_reason() -> None:
    timeline = Timeline()
    given_up = timeline.observe(observation(ProcessState.STOPPED, refused="contract.yaml: no such type"))
    assert isinstance(given_up, GiveUp)
    assert (timeline.tries.given_up, timeline.tries.error) == (True, "contract.yaml: no such type")
    assert isinstance(timeline.observe(observation(ProcessState.STOPPED), 1), Nothing), "until it is requested again"
    assert isinstance(timeline.observe(observation(ProcessState.STOPPED, REQUESTED_AGAIN), 1), Start)


def test_process_that_ends_without_an_error_is_restarted_after_a_pause() -> None:
    timeline = Timeline()
    timeline.observe(observation(ProcessState.RUNNING))
    assert isinstance(timeline.observe(observation(ProcessState.STOPPED, recorded=True, error="it ended"), 1), Nothing)
    assert isinstance(timeline.observe(observation(ProcessState.STOPPED, recorded=True, error="it ended"), 1), Start)


def test_given_up_process_is_forgotten_once_released() -> None:
    timeline = Timeline()
    timeline.fail_once("x", terminal=True)
    assert isinstance(timeline.observe(observation(ProcessState.FAILED, None)), ClearRunFile)
    assert not timeline.tries.given_up


def test_sleeping_driver_is_no_failure_and_starts_at_once_when_it_is_woken() -> None:
    timeline = Timeline()
    timeline.fail_once()
    timeline.await_start()
    timeline.observe(observation(ProcessState.RUNNING), 1)
    asleep = observation(ProcessState.ASLEEP, asleep=True)
    assert all(isinstance(timeline.observe(asleep, 3600), Nothing) for _ in range(3))
    assert timeline.tries.failures == 0
    assert isinstance(timeline.observe(observation(ProcessState.ASLEEP, asleep=False), 0.2), Start)


def test_driver_that_cannot_be_started_after_its_sleep_is_tried_again_after_a_pause() -> None:
    timeline = Timeline()
    assert isinstance(timeline.observe(observation(ProcessState.ASLEEP, asleep=False)), Start)
    failed = observation(ProcessState.ASLEEP, error="it could not be started: no space left on device")
    assert isinstance(timeline.observe(failed, 0.2), Nothing)
    assert timeline.tries.failures == 1
    assert isinstance(timeline.observe(failed, POLICY.pause(1)), Start)


def test_reason_why_a_woken_driver_was_not_started_stays() -> None:
    timeline = Timeline()
    refused = observation(ProcessState.ASLEEP, asleep=False, refused="the folder is gone")
    assert isinstance(timeline.observe(refused), GiveUp)
    assert isinstance(timeline.observe(refused, 1), Nothing)
    assert (timeline.tries.given_up, timeline.tries.error) == (True, "the folder is gone")


def test_what_is_not_known_of_the_topic_of_a_sleeping_driver_is_said_while_it_lasts() -> None:
    timeline = Timeline()
    timeline.observe(observation(ProcessState.ASLEEP, asleep=True, error="no broker answers"))
    assert (timeline.tries.error, timeline.tries.failures) == ("no broker answers", 0)
    timeline.observe(observation(ProcessState.ASLEEP, asleep=True), 5)
    assert timeline.tries.error == ""


def test_sleeping_driver_that_is_released_is_cleared() -> None:
    assert isinstance(Timeline().observe(observation(ProcessState.ASLEEP, None, asleep=True)), ClearRunFile)


MOMENTS = st.tuples(
    st.sampled_from([*ProcessState]),
    st.sampled_from([None, REQUESTED, REQUESTED_AGAIN]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.2, 1.0, 40.0, 130.0]),
)


@given(st.lists(MOMENTS, max_size=40))
def test_no_sequence_starts_a_process_twice_or_unrequested(
    moments: list[tuple[ProcessState, datetime | None, bool, bool, float]],
) -> None:
    timeline = Timeline()
    for state, desired_since, terminal, ready, after in moments:
        given_up = timeline.tries.given_up and desired_since == timeline.tries.desired_since
        action = timeline.observe(observation(state, desired_since, terminal=terminal, ready=ready), after)
        if isinstance(action, Start):
            assert state in ENDED
            assert desired_since is not None
            assert ready
            assert not given_up
        if isinstance(action, Drain | Kill):
            assert state not in ENDED
        if isinstance(action, Drain):
            assert desired_since is None
        if isinstance(action, Kill):
            assert timeline.tries.drain_requested is not None or state is ProcessState.UNKNOWN
        assert timeline.tries.failures <= POLICY.tries


def test_every_state_has_an_action() -> None:
    for state, desired_since in product(ProcessState, [None, REQUESTED]):
        assert Timeline().observe(observation(state, desired_since)).reason or state is ProcessState.UNKNOWN


def test_reconciliation_reads_no_clock_file_or_process() -> None:
    """Decisions depend on the arguments alone, so that any sequence can be tested."""
    tree = ast.parse(inspect.getsource(module))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"__future__", "dataclasses", "datetime", "typing", "include.state.process_states"}
