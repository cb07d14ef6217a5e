"""Payloads of one line. The audit reads them here, the data plane in `spark_jobs/contract/payload_texts.py`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from include.declare.payload_format import PayloadFormat, decoded
from include.declare.writer_schemas import WriterSchemas
from include.declare.yaml_declarations import Finding

if TYPE_CHECKING:
    from include.declare.contract import Column, Contract

PLACE = ("schema", 0, "properties")


class TextFormat(PayloadFormat):
    """A line of text: the value of the contract's only column, which `silver.py` takes apart."""

    name = "text"
    is_translated = True

    def findings(self, contract: Contract) -> Iterator[Finding]:
        """Yield why the columns are not one text."""
        columns = contract.columns
        if len(columns) != 1 or columns[0].type != "string" or len(columns[0].path) != 1:
            found = ", ".join(f"{column.name} ({column.type_text})" for column in columns)
            yield PLACE, f"a record of text is the value of one string column, and silver.py makes others; has {found}"

    def text(self, value: bytes, schemas: WriterSchemas, columns: Collection[Column] = ()) -> str | None:
        found, members = line_of(value), [column.path[0] for column in columns]
        return None if found is None else json.dumps(dict.fromkeys(members, found), ensure_ascii=False)


def line_of(value: bytes) -> str | None:
    """Return a payload without the line break at its end; None for bytes that are no UTF-8."""
    return decoded(value.removesuffix(b"\n").removesuffix(b"\r") if value.endswith(b"\n") else value)
