"""Restart, wait or give up: every rule of supervision as a story of moments, without a process."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.process_control import reconcile as module
from include.process_control.reconcile import (
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
WISH = datetime(2026, 1, 2, tzinfo=UTC)
ANEW = WISH + timedelta(hours=1)
POLICY = Policy(first_pause=1.0, longest_pause=6.0, tries=5, healthy_after=60.0, drain_within=30.0, silent_within=120.0)
THERE = [state for state in ProcessState if not state.terminal and state is not ProcessState.PENDING]
GONE = [ProcessState.STOPPED, ProcessState.FAILED, ProcessState.CRASHED]


def seen(state: ProcessState, desired_since: datetime | None = WISH, **more: object) -> Observation:
    """A process in `state`: with a pid when that state has one."""
    pid = None if state in GONE else 7
    recorded = state is not ProcessState.STOPPED
    base = Observation(ProcessStatus(NAME, pid, state), desired_since, recorded=recorded)
    return replace(base, **more)  # type: ignore[arg-type]


@dataclass
class Story:
    """One process over time: each decision follows from all observations before it."""

    policy: Policy = POLICY
    tries: Attempts = field(default_factory=Attempts)
    now: float = 1000.0

    def see(self, what: Observation, after: float = 0.0) -> Action:
        self.now += after
        self.tries, action = reconcile(what, self.tries, self.policy, self.now)
        return action

    def starts(self, **more: object) -> None:
        """Wait until it is due."""
        for _ in range(1000):
            if isinstance(self.see(seen(ProcessState.CRASHED, **more), 0.5), Start):
                return
        raise AssertionError("it is never started")

    def dies(self, why: str = "it was killed by SIGKILL", **more: object) -> Action:
        """Start it when it is due, see it there, see it gone."""
        self.starts(error=why, **more)
        self.see(seen(ProcessState.STARTING), 0.2)
        return self.see(seen(ProcessState.CRASHED, error=why, **more), 1)


def test_requested_process_that_is_not_running_is_started_once() -> None:
    story = Story()
    assert isinstance(story.see(seen(ProcessState.STOPPED)), Start)
    for state in (ProcessState.STARTING, ProcessState.RUNNING):
        assert isinstance(story.see(seen(state), 1), Nothing)


def test_process_that_crashed_before_the_runner_started_is_started_at_once() -> None:
    assert isinstance(Story().see(seen(ProcessState.CRASHED, error="pid 7 is gone")), Start)
    assert isinstance(Story().see(seen(ProcessState.FAILED, error="x", terminal=True)), Start)


def test_running_process_is_left_alone() -> None:
    for state in THERE:
        assert isinstance(Story().see(seen(state)), Nothing), state


def test_unrequested_process_is_drained_once_and_cleared() -> None:
    for state in THERE:
        story = Story()
        assert isinstance(story.see(seen(state, None)), Drain)
        assert isinstance(story.see(seen(ProcessState.DRAINING, None), 1), Nothing)
        assert isinstance(story.see(seen(ProcessState.STOPPED, None, recorded=True), 1), ClearRunFile)
        assert isinstance(story.see(seen(ProcessState.STOPPED, None), 1), Nothing)


@pytest.mark.parametrize("state", GONE)
def test_unrequested_process_is_never_started(state: ProcessState) -> None:
    story = Story()
    for _ in range(20):
        assert isinstance(story.see(seen(state, None), 10), ClearRunFile | Nothing)


def test_process_that_does_not_drain_is_killed_at_the_deadline() -> None:
    story = Story()
    story.see(seen(ProcessState.RUNNING, None))
    assert isinstance(story.see(seen(ProcessState.DRAINING, None), 29.9), Nothing)
    killed = story.see(seen(ProcessState.DRAINING, None), 0.1)
    assert isinstance(killed, Kill)
    assert "did not end within 30 s" in killed.reason
    story.see(seen(ProcessState.CRASHED, None), 1)
    assert "did not end within 30 s" in story.tries.error
    assert story.tries.failures == 0


def test_process_requested_while_draining_ends_then_restarts_without_a_pause() -> None:
    story = Story()
    story.see(seen(ProcessState.RUNNING))
    story.see(seen(ProcessState.RUNNING, None), 1)
    assert isinstance(story.see(seen(ProcessState.DRAINING, ANEW), 1), Nothing)
    assert isinstance(story.see(seen(ProcessState.STOPPED, ANEW), 1), Start)
    assert (story.tries.failures, story.tries.restarts) == (0, 0)


def test_pauses_double_up_to_the_longest() -> None:
    assert [POLICY.pause(failures) for failures in range(1, 6)] == [1, 2, 4, 6, 6]
    assert Policy(longest_pause=60).pause(10_000) == 60


def test_process_is_restarted_when_its_pause_ends_and_not_before() -> None:
    story = Story(replace(POLICY, tries=99))
    for pause in (1.0, 2.0, 4.0, 6.0, 6.0):
        waits = story.dies("no such thing")
        assert isinstance(waits, Nothing)
        assert f"tried again in {pause:g} s" in waits.reason
        assert story.tries.next_try == story.now + pause
        assert isinstance(story.see(seen(ProcessState.CRASHED, error="no such thing"), pause - 0.01), Nothing)
        assert isinstance(story.see(seen(ProcessState.CRASHED, error="no such thing"), 0.01), Start)
        story.see(seen(ProcessState.STARTING), 0.1)
        story.tries = replace(story.tries, started=None)  # this one was only to see when it starts


def test_process_is_given_up_after_five_failures_with_its_last_error() -> None:
    story = Story()
    ends = [story.dies(f"end {number}") for number in range(1, 6)]
    assert [type(end) for end in ends] == [Nothing, Nothing, Nothing, Nothing, GiveUp]
    assert (story.tries.given_up, story.tries.error, story.tries.restarts) == (True, "end 5", 4)
    for _ in range(50):
        assert isinstance(story.see(seen(ProcessState.CRASHED, error="end 5"), 100), Nothing)


def test_new_request_retries_at_once_with_all_tries() -> None:
    story = Story()
    for number in range(5):
        story.dies(f"end {number}")
    assert isinstance(story.see(seen(ProcessState.CRASHED, ANEW, error="end 4"), 1), Start)
    assert (story.tries.given_up, story.tries.failures, story.tries.error) == (False, 0, "")


def test_new_request_does_not_disturb_a_running_process() -> None:
    story = Story()
    story.see(seen(ProcessState.RUNNING))
    assert isinstance(story.see(seen(ProcessState.RUNNING, ANEW), 1), Nothing)


def test_new_request_cuts_a_pause_short() -> None:
    story = Story(replace(POLICY, tries=99))
    for number in range(4):
        story.dies(f"end {number}")
    assert isinstance(story.see(seen(ProcessState.CRASHED, ANEW)), Start)


def test_terminal_error_is_not_retried() -> None:
    story = Story()
    end = story.dies("the checkpoint is damaged", terminal=True)
    assert isinstance(end, GiveUp)
    assert story.tries.error == "the checkpoint is damaged"
    assert isinstance(story.see(seen(ProcessState.FAILED, error="x", terminal=True), 999), Nothing)


def test_failed_start_counts_as_an_end() -> None:
    story = Story()
    story.see(seen(ProcessState.STOPPED))
    waits = story.see(seen(ProcessState.STOPPED, error="no space left"), 0.2)
    assert isinstance(waits, Nothing)
    assert story.tries.error == "no space left"
    story = Story()
    story.see(seen(ProcessState.STOPPED))
    assert isinstance(story.see(seen(ProcessState.STOPPED, error="java: not found", terminal=True), 0.2), GiveUp)


@pytest.mark.parametrize("state", sorted(WORKING_STATES, key=lambda state: state.label))
def test_healthy_period_resets_the_failures(state: ProcessState) -> None:
    story = Story()
    for number in range(4):
        story.dies(f"end {number}")
    story.starts()
    story.see(seen(state), 1)
    story.see(seen(state), 59.9)
    assert story.tries.failures == 4
    story.see(seen(state), 0.1)
    assert story.tries.failures == 0
    assert story.tries.error == "end 3", "what happened can still be seen"


def test_interruption_restarts_the_healthy_period() -> None:
    story = Story()
    story.dies()
    story.starts()
    story.see(seen(ProcessState.RUNNING), 1)
    story.see(seen(ProcessState.UNKNOWN), 50)
    story.see(seen(ProcessState.RUNNING), 1)
    story.see(seen(ProcessState.RUNNING), 59)
    assert story.tries.failures == 1


def test_process_that_makes_progress_is_never_given_up() -> None:
    story = Story()
    for batch in range(30):
        story.starts()
        story.see(seen(ProcessState.RUNNING, batch=batch), 1)
        story.see(seen(ProcessState.RUNNING, batch=batch + 1), 1)
        assert isinstance(story.see(seen(ProcessState.CRASHED, error="end"), 1), Nothing)
    assert not story.tries.given_up


def test_batch_found_at_the_start_is_no_progress() -> None:
    story = Story()
    for _ in range(5):
        story.starts()
        story.see(seen(ProcessState.STARTING, batch=None), 1)
        story.see(seen(ProcessState.RUNNING, batch=41), 1)
        end = story.see(seen(ProcessState.CRASHED, error="end"), 1)
    assert isinstance(end, GiveUp)


def test_silent_process_is_killed_and_restarted() -> None:
    story = Story()
    story.see(seen(ProcessState.RUNNING))
    story.see(seen(ProcessState.UNKNOWN), 1)
    assert isinstance(story.see(seen(ProcessState.UNKNOWN), 119.9), Nothing)
    assert isinstance(story.see(seen(ProcessState.UNKNOWN), 0.1), Kill)
    story.see(seen(ProcessState.CRASHED, error="it was killed by SIGKILL"), 1)
    assert "gave no sign for 120 s" in story.tries.error
    assert isinstance(story.see(seen(ProcessState.CRASHED), 1), Start)


def test_intermediate_status_resets_the_silence_timeout() -> None:
    story = Story()
    for _ in range(10):
        assert isinstance(story.see(seen(ProcessState.UNKNOWN), 60), Nothing)
        assert isinstance(story.see(seen(ProcessState.RUNNING), 60), Nothing)


def test_unreadable_run_file_starts_nothing() -> None:
    unreadable = Observation(ProcessStatus(NAME, None, ProcessState.UNKNOWN, "cannot be read"), WISH)
    story = Story()
    for _ in range(10):
        assert isinstance(story.see(unreadable, 100), Nothing)
        assert isinstance(story.see(replace(unreadable, desired_since=None), 100), Nothing)


def test_process_waits_for_its_requirements_without_failing() -> None:
    story = Story()
    for _ in range(100):
        assert isinstance(story.see(seen(ProcessState.STOPPED, ready=False), 10), Nothing)
    assert story.tries.failures == 0
    assert isinstance(story.see(seen(ProcessState.STOPPED), 1), Start)


def test_refused_process_is_given_up_with_the_reason() -> None:
    story = Story()
    given_up = story.see(seen(ProcessState.STOPPED, refused="contract.yaml: no such type"))
    assert isinstance(given_up, GiveUp)
    assert (story.tries.given_up, story.tries.error) == (True, "contract.yaml: no such type")
    assert isinstance(story.see(seen(ProcessState.STOPPED), 1), Nothing), "until it is wanted anew"
    assert isinstance(story.see(seen(ProcessState.STOPPED, ANEW), 1), Start)


def test_process_that_ends_without_an_error_is_restarted_after_a_pause() -> None:
    story = Story()
    story.see(seen(ProcessState.RUNNING))
    assert isinstance(story.see(seen(ProcessState.STOPPED, recorded=True, error="it ended"), 1), Nothing)
    assert isinstance(story.see(seen(ProcessState.STOPPED, recorded=True, error="it ended"), 1), Start)


def test_given_up_process_is_forgotten_once_released() -> None:
    story = Story()
    story.dies("x", terminal=True)
    assert isinstance(story.see(seen(ProcessState.FAILED, None)), ClearRunFile)
    assert not story.tries.given_up


MOMENTS = st.tuples(
    st.sampled_from([*ProcessState]),
    st.sampled_from([None, WISH, ANEW]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.2, 1.0, 40.0, 130.0]),
)


@given(st.lists(MOMENTS, max_size=40))
def test_no_sequence_starts_a_process_twice_or_unrequested(
    moments: list[tuple[ProcessState, datetime | None, bool, bool, float]],
) -> None:
    story = Story()
    for state, desired_since, terminal, ready, after in moments:
        given_up = story.tries.given_up and desired_since == story.tries.desired_since
        action = story.see(seen(state, desired_since, terminal=terminal, ready=ready), after)
        if isinstance(action, Start):
            assert state in GONE
            assert desired_since is not None
            assert ready
            assert not given_up
        if isinstance(action, Drain | Kill):
            assert state not in GONE
        if isinstance(action, Drain):
            assert desired_since is None
        if isinstance(action, Kill):
            assert story.tries.drain_requested is not None or state is ProcessState.UNKNOWN
        assert story.tries.failures <= POLICY.tries


def test_every_state_has_an_action() -> None:
    for state, desired_since in product(ProcessState, [None, WISH]):
        assert Story().see(seen(state, desired_since)).reason or state is ProcessState.UNKNOWN


def test_reconciliation_reads_no_clock_file_or_process() -> None:
    """Decisions depend on the arguments alone, so that any sequence can be tested."""
    tree = ast.parse(inspect.getsource(module))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names == {"__future__", "dataclasses", "datetime", "typing", "include.state.process_states"}
