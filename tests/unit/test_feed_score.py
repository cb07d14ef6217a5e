"""The score of rejected records against injected faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest

from include.producers.manifest import KindScore, Score, score

SCHEMA = {
    "_topic": pl.String,
    "_partition": pl.Int32,
    "_offset": pl.Int64,
    "disposition": pl.String,
    "reasons": pl.List(pl.String),
}
RUN = {"fault": "run", "run": {"topic": "flights"}, "sent": 100, "finished": True}
FAULTS = [
    ("duplicate", "near", "duplicate", 0, 10),
    ("conflict", "other_payload", "duplicate", 1, 4),
    ("corrupt", "truncated_json", "malformed", 0, 11),
    ("corrupt", "february_30", "bad_ts", 1, 5),
    ("late", "late", None, 0, 12),
]
Rejected = tuple[int, int, str, list[str]]
RIGHT: list[Rejected] = [
    (0, 10, "duplicate", []),
    (1, 4, "duplicate", ["duplicate"]),
    (0, 11, "invalid", ["malformed"]),
    (1, 5, "invalid", ["range", "bad_ts"]),
]


def manifest(folder: Path, *more: dict[str, Any]) -> Path:
    names = ("fault", "kind", "reason", "partition", "offset")
    lines = [dict(zip(names, fault, strict=True)) | {"topic": "flights", "event_id": "x"} for fault in FAULTS]
    path = folder / "manifest.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(line) for line in (RUN, *lines, *more)))
    return path


def rejected(rows: list[Rejected], topic: str = "flights") -> pl.DataFrame:
    return pl.DataFrame([(topic, *row) for row in rows], schema=SCHEMA, orient="row")


def test_score_is_perfect_when_all_faults_have_their_reason(tmp_path: Path) -> None:
    found = score(manifest(tmp_path), rejected(RIGHT))
    assert found.perfect
    assert (found.expected, found.found) == (4, 4)
    assert KindScore("corrupt", "february_30", "bad_ts", 1, 1, 0, 0) in found.kinds
    assert found.examples == ()


def test_score_accepts_reasons_as_structs(tmp_path: Path) -> None:
    facts = [{"rule": "malformed", "column": None, "detail": None}]
    records = rejected(RIGHT[2:3]).with_columns(reasons=pl.Series([facts]))
    found = score(manifest(tmp_path), records)
    assert (found.found, found.wrong_reason) == (1, 0)


def test_missed_records_are_counted_and_named(tmp_path: Path) -> None:
    found = score(manifest(tmp_path), rejected(RIGHT[1:]))
    assert (found.missed, found.found, found.wrongly_rejected) == (1, 3, 0)
    assert found.examples == (("flights", 0, 10),)
    assert not found.perfect


@pytest.mark.parametrize("place", [(0, 12), (0, 13), (1, 10)])
def test_rejected_valid_records_are_counted_and_named(tmp_path: Path, place: tuple[int, int]) -> None:
    found = score(manifest(tmp_path), rejected([*RIGHT, (*place, "invalid", ["type"])]))
    assert (found.wrongly_rejected, found.found, found.missed) == (1, 4, 0)
    assert not found.perfect
    assert found.examples == (("flights", *place),)


def test_wrong_reason_is_counted(tmp_path: Path) -> None:
    found = score(manifest(tmp_path), rejected([*RIGHT[:2], (0, 11, "invalid", ["type"]), (1, 5, "duplicate", [])]))
    assert (found.found, found.wrong_reason) == (4, 2)
    assert not found.perfect


def test_records_of_another_topic_are_ignored(tmp_path: Path) -> None:
    both = pl.concat([rejected(RIGHT), rejected([(0, 10, "invalid", ["type"]), (0, 77, "invalid", [])], "weather")])
    assert score(manifest(tmp_path), both).perfect


def test_resent_chunk_excuses_only_its_range(tmp_path: Path) -> None:
    resent = {"fault": "resent", "from": 0, "to": 5, "topic": "flights", "partition": 0, "offset": 20, "end": 30}
    more: list[Rejected] = [(0, place, "duplicate", []) for place in (19, 20, 29, 30)]
    found = score(manifest(tmp_path, resent), rejected([*RIGHT, *more]))
    assert (found.excused, found.wrongly_rejected) == (2, 2)


def test_score_of_nothing_rejected_misses_every_fault(tmp_path: Path) -> None:
    none = score(manifest(tmp_path), rejected([]))
    assert (none.missed, none.found, none.perfect) == (4, 0, False)
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(orjson.dumps(RUN))
    assert score(empty, rejected([])) == Score((), 0, 0, 0, 0, 0, 0, ())
