"""Payloads of one line. The audit reads them here, the data plane in `spark_jobs/contract/payload_texts.py`."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from include.declare.payload_format import PayloadFormat, decoded
from include.declare.writer_schemas import WriterSchemas
from include.declare.yaml_declarations import Finding, InvalidValue, shown

if TYPE_CHECKING:
    from include.declare.contract import Column, Contract

PROPERTIES = ("schema", 0, "properties")
SIGN = re.compile(r"[\t\x20-\x7e]")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
MOST_CHARACTERS = 1 << 30


class TextFormat(PayloadFormat):
    """A line of text: the value of the contract's only column, which `silver.py` takes apart."""

    name = "text"
    is_translated = True
    has_members = False

    def findings(self, contract: Contract) -> Iterator[Finding]:
        columns = contract.columns
        if len(columns) != 1 or columns[0].type != "string" or len(columns[0].path) != 1:
            found = ", ".join(f"{column.name} ({column.type_text})" for column in columns)
            why = f"a record of text is the value of one string column, and silver.py makes others; has {found}"
            yield PROPERTIES, why

    def text(self, value: bytes, schemas: WriterSchemas, columns: Collection[Column] = ()) -> str | None:
        found, members = line_of(value), [column.path[0] for column in columns]
        return None if found is None else json.dumps(dict.fromkeys(members, found), ensure_ascii=False)


def line_of(value: bytes) -> str | None:
    """Return a payload without the line break at its end; None for bytes that are no UTF-8."""
    return decoded(value.removesuffix(b"\n").removesuffix(b"\r") if value.endswith(b"\n") else value)


@dataclass(frozen=True)
class CsvFormat(PayloadFormat):
    """A line of RFC 4180. Its fields have the contract's order, or that of `fields`, which may name more of them.

    A field without quotes that is `null_text` is null. Numbers, `true` and `false` are written as in JSON.
    """

    delimiter: str = ","
    quote: str = '"'
    null_text: str = ""
    fields: tuple[str, ...] = ()

    name = "csv"
    is_translated = True
    has_members = False
    options = {"delimiter": "delimiter", "quote": "quote", "nullText": "null_text", "fields": "fields"}

    def declared(self, options: Mapping[str, Any]) -> Self:
        found = replace(self, **{self.options[name]: value for name, value in options.items()})
        for name in ("delimiter", "quote"):
            value = getattr(found, name)
            if not isinstance(value, str) or not SIGN.fullmatch(value):
                raise InvalidValue(f"{name} must be one character of ASCII, is {shown(value)}")
        if found.delimiter == found.quote:
            raise InvalidValue(f"delimiter and quote must differ, both are {shown(found.quote)}")
        if not isinstance(found.null_text, str) or set(found.null_text) & {found.delimiter, found.quote, "\r", "\n"}:
            raise InvalidValue(f"nullText must be text that needs no quotes, is {shown(found.null_text)}")
        if not isinstance(found.fields, tuple) or len(set(found.fields)) < len(found.fields):
            raise InvalidValue(f"fields must be a list of different names, is {shown(options['fields'])}")
        return found

    @property
    def described(self) -> str:
        parts = [f"{name} {shown(getattr(self, part))}" for name, part in self.options.items() if getattr(self, part)]
        return f"{self.name} ({', '.join(parts)})"

    def findings(self, contract: Contract) -> Iterator[Finding]:
        names = self.names(contract.columns)
        for number, column in enumerate(contract.columns):
            if column.kind.inside or len(column.path) != 1:
                why = f"{column.name}: a field of csv is one value, and {column.type_text} is none"
                yield (*PROPERTIES, number), why
            elif column.path[0] not in names:
                yield (*PROPERTIES, number), f"{column.path[0]} is not in fields ({', '.join(names)}) of the lines"

    def names(self, columns: Collection[Column]) -> tuple[str, ...]:
        """Return the names of a line's fields."""
        return self.fields or tuple(column.path[0] for column in columns)

    def text(self, value: bytes, schemas: WriterSchemas, columns: Collection[Column] = ()) -> str | None:
        line, names = line_of(value), self.names(columns)
        fields = None if line is None else self._split(line)
        if fields is None or len(fields) != len(names):
            return None
        found = dict(zip(names, fields, strict=True))
        members = [f"{_quoted(name)}:{_token(column, found[name])}" for column in columns for name in column.path[:1]]
        return f"{{{','.join(members)}}}"

    def _split(self, line: str) -> list[str | None] | None:
        """Return the fields of a line by Python's reader; None for a line that is not of RFC 4180."""
        csv.field_size_limit(MOST_CHARACTERS)
        try:
            (fields,) = list(csv.reader([line], delimiter=self.delimiter, quotechar=self.quote, strict=True)) or [[""]]
        except (csv.Error, ValueError):
            return None
        at, found = 0, list[str | None]()
        for field in fields or [""]:
            is_quoted, quotes = line[at : at + 1] == self.quote, field.count(self.quote)
            if not is_quoted and (quotes or "\r" in field or "\n" in field):
                return None
            at += len(field) + (quotes + 2 if is_quoted else 0) + 1
            found.append(None if field == self.null_text and not is_quoted else field)
        return found if at == len(line) + 1 else None


def csv_kind(column: Column) -> str:
    """Return what a field becomes in JSON where it is written so."""
    return {"integer": "number"}.get(column.kind.logical, column.kind.logical)


def _token(column: Column, field: str | None) -> str:
    kind = csv_kind(column)
    if field is None:
        return "null"
    is_bare = (kind == "number" and NUMBER.fullmatch(field)) or (kind == "boolean" and field in ("true", "false"))
    return field if is_bare else _quoted(field)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
