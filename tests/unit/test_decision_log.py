"""Decisions about rejected records: a driver reads each line once, and a cut-off line counts as not written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from include.ground.paths import decision_log_path
from include.ground.settings import Settings
from include.read import rejected_records
from include.read.rejected_records import (
    DISCARD,
    FIX,
    REINSTATE,
    Decision,
    DecisionLogUnreadable,
    append_decisions,
    decided_records,
    decision_log_size,
)
from spark_jobs.layers.run_inputs import RecordDecisions

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def decide(settings: Settings, act: str, *offsets: int, payload: bytes | None = None) -> int:
    made = [Decision(act, 0, offset, offset // 10, NOON, "ann", "noise", payload) for offset in offsets]
    return append_decisions(settings, "flights", made)


@contextmanager
def lines_read() -> Iterator[list[bytes]]:
    lines: list[bytes] = []
    loads = json.loads

    def noted(line: Any) -> Any:
        lines.append(line)
        return loads(line)

    with pytest.MonkeyPatch.context() as spied:
        spied.setattr(rejected_records.json, "loads", noted)
        yield lines


def test_run_reads_only_the_lines_since_the_last_run(settings: Settings) -> None:
    for length in (50, 500):
        decide(settings, DISCARD, *range(length))
        decisions = RecordDecisions(settings, "flights")
        decisions.for_batches((0, 0), decisions.until())
        decide(settings, REINSTATE, 3)
        with lines_read() as lines:
            assert decisions.for_batches((1000, 1000), decisions.until()) == {}
            found = decisions.for_batches((0, 0), decisions.until())
        assert len(lines) == 1
        assert {offset for _, offset in found} == set(range(10))
        assert not found[0, 3].is_discarded
        decide(settings, DISCARD, 3)


def test_process_reads_each_decision_once(settings: Settings) -> None:
    decide(settings, DISCARD, *range(100))
    assert len(decided_records(settings, "flights")) == 100
    with lines_read() as lines:
        assert decide(settings, DISCARD, 3, 100) == 1
        assert len(decided_records(settings, "flights")) == 101
        assert len(decided_records(settings, "flights")) == 101
    assert len(lines) == 1, "the line that it has appended"


@pytest.mark.parametrize("is_replaced", [True, False])
@pytest.mark.parametrize("after", ["same length", "longer", "shorter", "removed"])
def test_list_that_somebody_edited_is_read_again(settings: Settings, after: str, is_replaced: bool) -> None:
    decide(settings, DISCARD, 1, 2)
    assert decided_records(settings, "flights")[0, 2].is_discarded
    path = decision_log_path(settings, "flights")
    first, second = path.read_bytes().splitlines(keepends=True)
    corrected = second.replace(b'"offset": 2', b'"offset": 7')
    edited = {"same length": first + corrected, "longer": first + corrected * 2, "shorter": corrected, "removed": b""}
    if is_replaced or after == "removed":
        path.unlink()
    if after != "removed":
        path.write_bytes(edited[after])
        # An editor takes longer than the resolution of the time of change.
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    expected = {"shorter": {(0, 7)}, "removed": set()}.get(after, {(0, 1), (0, 7)})
    assert set(decided_records(settings, "flights")) == expected
    assert decide(settings, DISCARD, 2) == 1


def test_reader_advanced_in_steps_finds_the_same_as_one_full_read(settings: Settings) -> None:
    decide(settings, DISCARD, 1, 2, 30)
    earlier = decision_log_size(settings, "flights")
    decide(settings, FIX, 2, payload=b"{}")
    path, whole = decision_log_path(settings, "flights"), decided_records(settings, "flights")
    text = path.read_bytes()
    decisions = RecordDecisions(settings, "flights")
    for size in range(len(text) + 1):
        path.write_bytes(text[:size])
        assert decisions.for_batches((0, 9), size) == RecordDecisions(settings, "flights").for_batches((0, 9), size)
    assert decisions.for_batches((0, 9), len(text)) == whole
    assert decisions.for_batches((0, 9), earlier)[0, 2].payload is None, "a repeated run uses the decisions of its time"
    assert decisions.for_batches((0, 9), len(text)) == whole
    assert decisions.for_batches((3, 9), len(text)) == {(0, 30): whole[0, 30]}


@pytest.mark.parametrize("cut", [b"", b'{"act": "disc'])
def test_appended_decision_follows_the_last_whole_line(settings: Settings, cut: bytes) -> None:
    decide(settings, DISCARD, 1, 2)
    path = decision_log_path(settings, "flights")
    whole = path.read_bytes()
    path.write_bytes(whole + cut if cut else whole.removesuffix(b"\n"))
    decisions = RecordDecisions(settings, "flights")
    assert len(decisions.for_batches((0, 0), decisions.until())) == 2
    assert decide(settings, DISCARD, 1, 3) == 1
    assert path.read_bytes().startswith(whole)
    assert set(decided_records(settings, "flights")) == {(0, 1), (0, 2), (0, 3)}


def test_damaged_line_is_named_and_read_once_it_is_corrected(settings: Settings) -> None:
    decide(settings, DISCARD, 1, 2)
    path = decision_log_path(settings, "flights")
    good, decisions = path.read_bytes(), RecordDecisions(settings, "flights")
    decisions.for_batches((0, 0), len(good))
    path.write_bytes(good + b"{}\n")
    for _ in range(2):
        with pytest.raises(DecisionLogUnreadable, match="line 3"):
            decisions.for_batches((0, 0), decisions.until())
    path.write_bytes(good)
    decide(settings, DISCARD, 3)
    assert len(decisions.for_batches((0, 0), decisions.until())) == 3
