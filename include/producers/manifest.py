"""The manifest: every fault of one run with its offset, and the progress of an unfinished run.

Manifest: JSON lines, written whole at the end of a run or when it is interrupted. The first line is the run itself,
`{"fault": "run", "run": {…}, "sent": …, "finished": …}`; then one line per injected fault: `fault`, `kind`, `reason`
(null when nothing must be rejected), `event_id`, `topic`, `partition`, `offset`. After a crash the unfinished chunk is
sent again; a line `{"fault": "resent", "from", "to", "topic", "partition", "offset", "end"}` per partition names the
rows, and the offsets [offset, end) that contain both copies.

Progress: `<manifest>.progress`, a log of JSON lines, one per chunk that is in the topic, fsynced; a torn last
line is ignored. It exists until the run is finished.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from include.ground.errors import Refused, Terminal
from include.ground.record_coordinates import RECORD

Line = dict[str, Any]
Ends = dict[int, int]
"""Partition → end offset of the topic's log."""


class ManifestExists(Terminal):
    """A manifest is never overwritten; `finished`: it belongs to this run, which is complete."""

    def __init__(self, path: Path, finished: bool) -> None:
        state = "of this run, which is finished" if finished else "of another run"
        super().__init__(
            f"{path} is the manifest {state}; it was not overwritten and nothing was sent",
            "name another file with --manifest, or move this one away",
        )
        self.path = path
        self.finished = finished


class ManifestUnreadable(Terminal):
    """The file is not a manifest; `line` is the first unreadable one."""

    def __init__(self, path: Path, line: int) -> None:
        super().__init__(f"{path} line {line} is not a line of a manifest; nothing was changed")
        self.path = path
        self.line = line


@dataclass(frozen=True)
class Journal:
    """Progress of an unfinished run: rows `sent`, end offsets then, the manifest's lines so far."""

    path: Path
    run: Line
    sent: int
    ends: Ends
    lines: tuple[Line, ...]


def journal_path(manifest: Path) -> Path:
    """Return the path of the progress of the manifest's run."""
    return manifest.with_name(f"{manifest.name}.progress")


def refuse_other_run(manifest: Path, run: Line) -> None:
    """Raise ManifestExists when the file belongs to another run, or to this one and it is finished."""
    if not manifest.exists():
        return
    first = next(read_manifest(manifest), {})
    if first.get("run") != run or first.get("finished"):
        raise ManifestExists(manifest, finished=first.get("run") == run)


def open_journal(manifest: Path, run: Line, ends: Ends) -> Journal:
    """Begin the run, or return its progress; `ends` are the current end offsets.

    ManifestExists when the progress belongs to another run, Refused when the log is shorter than recorded.
    """
    path = journal_path(manifest)
    entries = list(_whole_lines(path))
    if not entries:
        begun = Journal(path, run, 0, ends, ())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        _append(path, {"run": run, "sent": 0, "ends": _json_ends(ends), "lines": []})
        return begun
    if entries[0].get("run") != run:
        raise ManifestExists(path, finished=False)
    _cut_torn_line(path)
    last = entries[-1]
    recorded = {int(partition): int(end) for partition, end in last["ends"].items()}
    if any(ends.get(partition, 0) < end for partition, end in recorded.items()):
        what = f"{path} records end offsets {recorded} of the topic, but it ends at {ends}: it was recreated"
        remedy = f"delete {path} to send the run from its beginning"
        raise Refused(f"{what}; nothing was sent", remedy, code="topic-recreated")
    lines = tuple(line for entry in entries for line in entry["lines"])
    return Journal(path, run, int(last["sent"]), recorded, lines)


def extend_journal(journal: Journal, sent: int, ends: Ends, lines: list[Line]) -> Journal:
    """Record that rows up to `sent` are in the topic, with the lines of their faults; durable on return."""
    _append(journal.path, {"sent": sent, "ends": _json_ends(ends), "lines": lines})
    return Journal(journal.path, journal.run, sent, ends, (*journal.lines, *lines))


def write_manifest(manifest: Path, journal: Journal, finished: bool) -> None:
    """Write the manifest in one step; a finished run's progress is removed."""
    head: Line = {"fault": "run", "run": journal.run, "sent": journal.sent, "finished": finished}
    part = manifest.with_name(f"{manifest.name}.part")
    with part.open("wb") as file:
        for line in (head, *journal.lines):
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, manifest)
    if finished:
        journal.path.unlink()


def read_manifest(manifest: Path) -> Iterator[Line]:
    """Yield the manifest's lines, the run's first; ManifestUnreadable names the first unreadable one."""
    with manifest.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise ManifestUnreadable(manifest, number) from error
            if not isinstance(line, dict) or "fault" not in line:
                raise ManifestUnreadable(manifest, number)
            yield line


def _json_ends(ends: Ends) -> dict[str, int]:
    return {str(partition): end for partition, end in sorted(ends.items())}


def _append(path: Path, entry: Line) -> None:
    with path.open("ab") as file:
        file.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
        file.flush()
        os.fsync(file.fileno())


def _whole_lines(path: Path) -> Iterator[Line]:
    if not path.exists():
        return
    *whole, _torn = path.read_bytes().split(b"\n")
    for number, text in enumerate(whole, start=1):
        try:
            yield orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise ManifestUnreadable(path, number) from error


def _cut_torn_line(path: Path) -> None:
    content = path.read_bytes()
    os.truncate(path, content.rfind(b"\n") + 1)


EXPECTED_SCHEMA = {
    "fault": pl.String,
    "kind": pl.String,
    "reason": pl.String,
    "_topic": pl.String,
    "_partition": pl.Int64,
    "_offset": pl.Int64,
}
RESENT_SCHEMA = {"_topic": pl.String, "_partition": pl.Int64, "start": pl.Int64, "end": pl.Int64}


@dataclass(frozen=True)
class KindScore:
    """Records of one kind of fault: injected (`expected`), rejected, missed, and rejected for another reason only."""

    fault: str
    kind: str
    reason: str
    expected: int
    found: int
    missed: int
    wrong_reason: int


@dataclass(frozen=True)
class Score:
    """Rejected records compared with the manifest.

    `wrongly_rejected`: valid records that were rejected. `excused`: rejected within a chunk that was sent twice after a
    crash. `examples`: positions (topic, partition, offset) of the first missed, wrongly classified and wrongly rejected
    records.
    """

    kinds: tuple[KindScore, ...]
    expected: int
    found: int
    missed: int
    wrong_reason: int
    wrongly_rejected: int
    excused: int
    examples: tuple[tuple[str, int, int], ...]

    @property
    def perfect(self) -> bool:
        """Whether all faults were rejected for their reasons, and nothing else."""
        return not (self.missed or self.wrong_reason or self.wrongly_rejected)


def score(manifest: Path, rejected: pl.DataFrame) -> Score:
    """Return how rejected records match a manifest, by (topic, partition, offset).

    `rejected` has `_topic, _partition, _offset, disposition` and `reasons` (a list of rule names, or of structs with
    `rule` as in the table); only its records of the manifest's topic count. Duplicates have disposition
    `duplicate`, or a rule of that name.
    """
    lines = list(read_manifest(manifest))
    expected = _expected(lines)
    topics = {line["run"]["topic"] for line in lines if line["fault"] == "run"}
    found = _rejected_rules(rejected.filter(pl.col("_topic").is_in(sorted(topics))))
    matched = expected.join(found, on=RECORD, how="left").with_columns(
        found=pl.col("rules").is_not_null(),
        right=pl.col("rules").list.contains(pl.col("reason")).fill_null(value=False),
    )
    surplus = found.join(expected, on=RECORD, how="anti")
    excused = _in_resent_ranges(surplus, lines)
    wrong = surplus.join(excused, on=RECORD, how="anti")
    kinds = _by_kind(matched)
    totals = Counter[str]()
    for kind in kinds:
        totals.update({"expected": kind.expected, "found": kind.found, "wrong": kind.wrong_reason})
    return Score(
        kinds=kinds,
        expected=totals["expected"],
        found=totals["found"],
        missed=totals["expected"] - totals["found"],
        wrong_reason=totals["wrong"],
        wrongly_rejected=wrong.height,
        excused=excused.height,
        examples=_examples(matched.filter(~pl.col("right")), wrong),
    )


def _expected(lines: list[Line]) -> pl.DataFrame:
    rows = [
        (line["fault"], line["kind"], line["reason"], line["topic"], line["partition"], line["offset"])
        for line in lines
        if line.get("reason")
    ]
    return pl.DataFrame(rows, schema=EXPECTED_SCHEMA, orient="row")


def _rejected_rules(rejected: pl.DataFrame) -> pl.DataFrame:
    reasons = pl.col("reasons")
    if isinstance(rejected.schema["reasons"], pl.List) and isinstance(rejected.schema["reasons"].inner, pl.Struct):
        reasons = reasons.list.eval(pl.element().struct.field("rule"))
    duplicate = pl.when(pl.col("disposition") == "duplicate").then(["duplicate"]).otherwise([])
    return rejected.select(
        pl.col("_topic"),
        pl.col("_partition").cast(pl.Int64),
        pl.col("_offset").cast(pl.Int64),
        rules=pl.concat_list(reasons.fill_null([]), duplicate),
    )


def _in_resent_ranges(surplus: pl.DataFrame, lines: list[Line]) -> pl.DataFrame:
    ranges = [
        (line["topic"], line["partition"], line["offset"], line["end"]) for line in lines if line["fault"] == "resent"
    ]
    resent = pl.DataFrame(ranges, schema=RESENT_SCHEMA, orient="row")
    within = (pl.col("_offset") >= pl.col("start")) & (pl.col("_offset") < pl.col("end"))
    return surplus.join(resent, on=["_topic", "_partition"]).filter(within).unique(RECORD)


def _by_kind(matched: pl.DataFrame) -> tuple[KindScore, ...]:
    table = (
        matched.group_by("fault", "kind", "reason")
        .agg(
            expected=pl.len(),
            found=pl.col("found").sum(),
            wrong_reason=(pl.col("found") & ~pl.col("right")).sum(),
        )
        .sort("fault", "reason", "kind")
    )
    return tuple(
        KindScore(fault, kind, reason, expected, found, expected - found, wrong)
        for fault, kind, reason, expected, found, wrong in table.rows()
    )


def _examples(*frames: pl.DataFrame) -> tuple[tuple[str, int, int], ...]:
    positions = pl.concat([frame.select(RECORD) for frame in frames]).head(10)
    return tuple((topic, partition, offset) for topic, partition, offset in positions.rows())
