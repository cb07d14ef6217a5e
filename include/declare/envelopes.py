"""Envelopes: what a record has around the row that the contract describes, and the columns that it adds.

The contract's columns are read from the row; a JSON pointer (`/source/pos`) is read from the record. Data plane and
audit find the row each by itself (`spark_jobs/contract/payload_texts.py`, `change_text` here).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from include.declare.changes import Changes, Operation
from include.declare.contract import Column, Contract, joined_path
from include.declare.payload_format import Headers, Opened
from include.declare.yaml_declarations import shown

TOMBSTONE = "tombstone"
"""The disposition and the reason of a record without a value: it has a compacted topic forget a deleted row."""


@dataclass(frozen=True)
class Envelope:
    """`row`: the members that lead to the row. `columns`: those that it adds, unless the contract has columns of these
    names. `changes`: what it says about changes; its keys are the pipeline's. `rowless`: operations without a row,
    `keyed`: those whose row may have its keys alone. `instead`: what leads to the row where `row` leads to none.
    `text`: of a contract, how a record's text becomes the one that is read.
    """

    name: str
    row: tuple[str, ...]
    columns: tuple[Column, ...]
    changes: Changes | None = None
    keyed: tuple[str, ...] = ()
    rowless: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    text: Callable[[Contract], Opened] | None = None

    def opened(self, contract: Contract, keys: Collection[str]) -> Contract:
        """Return the contract with each column's place in the record, and with the columns of the envelope."""
        own = {column.name for column in contract.columns}
        added = tuple(each for each in self.columns if each.name not in own)
        placed = tuple(self._placed(column, column.name in keys) for column in contract.columns)
        return replace(contract, columns=(*added, *placed), envelope=self.name)

    def hidden(self, contract: Contract) -> Iterator[tuple[int, str]]:
        """Yield the columns of the row that would hide one of the envelope, each with the reason; one that is read from
        around the row may take its place.
        """
        own = [column.name for column in self.columns]
        for n, column in enumerate(contract.columns):
            name, is_pointer = column.name, column.physical_name.startswith("/")
            instead = name in own and is_pointer and column.path[: len(self.row)] != self.row
            if name.lower() in own and not instead:
                other = f"{{name: row_{name}, physicalName: {column.member}}}"
                yield n, f"{name} is a column that envelope {self.name} adds; name the row's otherwise: {other}"

    def of_changes(self, declared: Changes | None) -> Changes | None:
        """Return what the records say about changes: as declared, and otherwise as the envelope has it."""
        if self.changes is None or declared is None:
            return declared
        sequence = declared.sequence or self.changes.sequence
        return Changes(declared.keys, sequence, declared.operation or self.changes.operation)

    def _placed(self, column: Column, is_key: bool) -> Column:
        """Return a column of the row with its place in the record; a row may lack it where an operation gives none."""
        if column.physical_name.startswith("/"):
            return column
        inside = replace(column, physical_name=joined_path((*self.row, *column.path)))
        absent = self.rowless if is_key else (*self.keyed, *self.rowless)
        return replace(inside, required=False, absent_in=absent) if column.required and absent else inside


def change_text(text: str) -> str | None:
    """Return Debezium's JSON as the change alone, with the row under `after` whatever happened to it.

    None for a payload that is null; a text that is no such record as it is.
    """
    payload = _members(text)
    if "schema" in payload and "payload" in payload:
        _, begin, end = payload["payload"]
        text = text[begin:end]
        if text == "null":
            return None
        payload = _members(text)
    before, after = payload.get("before"), payload.get("after")
    if before is None or text[before[1]] == "n" or (after is not None and text[after[1]] != "n"):
        return text
    names = {before[0]: "after", **({after[0]: "before"} if after else {})}
    found, at = "", 0
    for place, name in sorted(names.items()):
        old = "before" if name == "after" else "after"
        found, at = f'{found}{text[at:place]}"{name}"', place + len(old) + 2
    return found + text[at:]


STRUCTURED = "application/cloudevents"
"""How the content type begins of an event whose attributes are in its value."""


def event_headers(contract: Contract) -> dict[str, str]:
    """Return the attributes of events that a contract reads, and which headers they are in binary mode."""
    names = [column.path[0] for column in contract.columns if not is_of_row(column.path, contract)]
    return {name: "content-type" if name == "datacontenttype" else f"ce_{name}" for name in names}


def structured_text(contract: Contract) -> Opened:
    """Return what makes of an event in binary mode, whose attributes are headers, one that has them in its text.

    An event without data has a value of null; data that are no JSON stay what they are.
    """
    attributes = event_headers(contract)

    def opened(text: str | None, headers: Headers) -> str | None:
        given = {each["key"]: each["value"] for each in headers}
        kind = (given.get("content-type") or b"").decode(errors="replace").lower()
        if given.get("ce_specversion") is None or kind.startswith(STRUCTURED):
            return text
        try:
            texts = {name: value.decode() for name, of in attributes.items() if (value := given.get(of)) is not None}
            _ = None if text is None else json.loads(text)
        except (ValueError, RecursionError):
            return text
        around = json.dumps(texts, ensure_ascii=False)
        return around if text is None else f'{around[:-1]}{", " if texts else ""}"data":{text}}}'

    return opened


def _members(text: str) -> dict[str, tuple[int, int, int]]:
    """Return where the members of a JSON object are: name, and begin and end of the value; none if it is no object."""
    decoder, found, at = json.JSONDecoder(strict=False), dict[str, tuple[int, int, int]](), _after_space(text, 0)
    try:
        if text[at] != "{":
            return {}
        at = _after_space(text, at + 1)
        while text[at] != "}":
            name, end = scanstring(text, at + 1, False)
            begin = _after_space(text, _after_space(text, end) + 1)
            _, end = decoder.raw_decode(text, begin)
            if name in found:
                return {}
            found[name] = at, begin, end
            at = _after_space(text, end)
            at = _after_space(text, at + 1) if text[at] == "," else at
    except (ValueError, IndexError, RecursionError):
        return {}
    return {} if text[at + 1 :].strip(" \n\r\t") else found


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \n\r\t":
        at += 1
    return at


OPERATIONS = Operation("op", delete=("d",), truncate=("t",))
ENVELOPES: Mapping[str, Envelope] = {
    each.name: each
    for each in (
        Envelope(
            "debezium",
            ("after",),
            (
                Column("op", "string", required=True, values=("c", "u", "d", "r", "t")),
                Column("sequence", "bigint", physical_name="/source/lsn"),
                Column("ts_ms", "bigint", required=True),
            ),
            Changes((), ("sequence",), OPERATIONS),
            keyed=("d",),
            rowless=("t",),
            instead=("before",),
            text=lambda _: lambda text, headers: None if text is None else change_text(text),
        ),
        Envelope(
            "cloudevents",
            ("data",),
            (
                Column("ce_id", "string", required=True, physical_name="id"),
                Column("ce_source", "string", required=True, physical_name="source"),
                Column("ce_type", "string", required=True, physical_name="type"),
                Column("ce_subject", "string", physical_name="subject"),
                Column("ce_time", "timestamp", physical_name="time"),
            ),
            text=structured_text,
        ),
    )
}
"""By the name that `pipeline.yaml` gives."""


def known_envelope(value: Any) -> Any:
    """Return the name of an envelope; ValueError."""
    if value not in ENVELOPES:
        raise ValueError(f"must be one of {', '.join(ENVELOPES)}, is {shown(value)}")
    return value


def row_path(contract: Contract) -> tuple[str, ...]:
    """Return the members that lead to the row that the contract describes; none without an envelope."""
    return ENVELOPES[contract.envelope].row if contract.envelope else ()


def is_of_row(path: tuple[str, ...], contract: Contract) -> bool:
    """Return whether a path into the record leads into the row that the contract describes."""
    row = row_path(contract)
    return path[: len(row)] == row


def columns_read(contract: Contract) -> tuple[Column, ...]:
    """Return the columns as they are read before the row is found: those of the row also where it may lie instead."""
    envelope = ENVELOPES.get(contract.envelope)
    if envelope is None or not envelope.instead:
        return contract.columns
    inside = [column for column in contract.columns if is_of_row(column.path, contract)]
    paths = [(*envelope.instead, *column.path[len(envelope.row) :]) for column in inside]
    moved = [replace(column, physical_name=joined_path(path)) for column, path in zip(inside, paths, strict=True)]
    return (*contract.columns, *moved)


def text_of_row(contract: Contract) -> Opened | None:
    """Return how a record's text becomes the one that is read; None: it is read as it is."""
    text = ENVELOPES[contract.envelope].text if contract.envelope else None
    return None if text is None else text(contract)


def has_tombstones(contract: Contract) -> bool:
    """Return whether a record without a value has a compacted topic forget a row."""
    return bool(contract.envelope) and ENVELOPES[contract.envelope].changes is not None
