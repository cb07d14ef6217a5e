"""The contract of a dataset: what one record must look like (Open Data Contract Standard v3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from include.declare.column_type import ColumnType, IntegerType, Value
from include.declare.contract_rules import Rule
from include.declare.contract_types import COLUMN_TYPES
from include.declare.payload_format import JSON
from include.declare.portable_regex import DEFAULT_STRING_BYTES

CLOCK_SKEW = timedelta(minutes=10)
ADDED_UP = 10**12
"""Nine million values of this size make a sum of 64 bits."""


@dataclass(frozen=True)
class Column:
    """One field of the record. `type` is a name of COLUMN_TYPES; `minimum`/`maximum` are of it; lengths are bytes."""

    name: str
    type: str
    required: bool = False
    minimum: Value | None = None
    maximum: Value | None = None
    min_length: int = 0
    max_length: int = DEFAULT_STRING_BYTES
    pattern: str | None = None
    values: tuple[str, ...] = ()
    precision: int = 18
    scale: int = 6
    future: timedelta = CLOCK_SKEW
    """By how much a time may be later than the record's Kafka timestamp."""
    past: timedelta | None = None
    """By how much it may be earlier; None: any time."""
    physical_name: str = ""

    @property
    def member(self) -> str:
        """The field's name in the record's JSON object: the column's own unless another is declared."""
        return self.physical_name or self.name

    @property
    def kind(self) -> ColumnType:
        """Its type."""
        return COLUMN_TYPES[self.type]

    @property
    def may_overflow(self) -> bool:
        """Whether a few of its values may add up to more than 64 bits."""
        bounds = [self.minimum, self.maximum]
        is_bounded = all(isinstance(bound, int) and abs(bound) <= ADDED_UP for bound in bounds)
        return isinstance(self.kind, IntegerType) and self.kind.bits > 32 and not is_bounded

    @property
    def type_text(self) -> str:
        """The type in words: of a number the decimal, with its digits."""
        return self.kind.text(self)


@dataclass(frozen=True)
class ServiceLevel:
    """A promise to readers: `latency`, the maximum seconds between a record's Kafka time and its publication."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Contract:
    """All that a dataset promises.

    `columns` and `identity` (the columns whose absence is `missing_id`) describe one record, `format` its payload;
    `rules` apply to records and to silver as a whole, `gold` to gold tables by full name; `levels` to the service.
    """

    dataset: str
    version: str
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    identity: tuple[str, ...]
    gold: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    levels: tuple[ServiceLevel, ...] = ()
    format: str = JSON

    def __hash__(self) -> int:
        return hash((self.dataset, self.version, self.columns))

    @property
    def types(self) -> Mapping[str, str]:
        """The type of each column in words."""
        return {column.name: column.type_text for column in self.columns}

    @property
    def record_rules(self) -> tuple[Rule, ...]:
        """The rules that validate each record as it arrives."""
        return tuple(rule for rule in self.rules if rule.validates_records)

    def checks(self, table: str) -> tuple[Rule, ...]:
        """Return the rules that a checkpoint evaluates for a table; `table` is a full name (`gold.carrier_hours`)."""
        if table == f"silver.{self.dataset}":
            return tuple(rule for rule in self.rules if not rule.validates_records)
        return self.gold.get(table, ())
