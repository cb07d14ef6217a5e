"""The wire format of a schema registry, and why a payload has no JSON that the contract could validate."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.declare.contract import Contract
from include.declare.writer_schemas import HEADER_BYTES

UNREAD = "_unread"
"""The column of records in another format than JSON: a rule and its detail, null where the payload was read."""
UNREAD_TYPE = "struct<rule:string,detail:string>"
WIRE_FORMAT = "wire_format"


def unread(rule: str | Column, detail: Column) -> Column:
    """Return the reason why a payload was not read."""
    return F.struct(F.lit(rule).alias("rule"), detail.alias("detail")).try_cast(UNREAD_TYPE)


def too_large(contract: Contract) -> Column:
    """Return the reason of a payload with more bytes than the contract takes, else null."""
    size = F.octet_length("value")
    return F.when(size > contract.limits.bytes, unread("size", size.cast("string")))


@dataclass(frozen=True)
class WireFrame:
    """The wire format of a record's `value`: the schema's id and the payload; else the reason why it has none."""

    schema: Column
    payload: Column
    fault: Column

    @classmethod
    def of_value(cls) -> WireFrame:
        """Return what the column `value` has."""
        value = F.col("value")
        is_framed = (F.octet_length(value) >= HEADER_BYTES) & (F.hex(F.substring(value, 1, 1)) == "00")
        number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).try_cast("long")
        fault = F.when(value.isNotNull() & ~is_framed, unread(WIRE_FORMAT, F.hex(F.substring(value, 1, HEADER_BYTES))))
        return cls(F.when(is_framed, number), F.when(is_framed, F.expr(f"substring(value, {HEADER_BYTES + 1})")), fault)
