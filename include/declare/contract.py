"""The contract of a dataset: what one record must look like (Open Data Contract Standard v3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from include.declare.column_type import ColumnType, IntegerType, Value
from include.declare.contract_rules import REJECT, Rule
from include.declare.contract_types import COLUMN_TYPES
from include.declare.payload_format import JsonFormat, PayloadFormat
from include.declare.portable_regex import DEFAULT_STRING_BYTES

if TYPE_CHECKING:
    from include.declare.children import Children


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
    absent_in: tuple[str, ...] = ()
    """The operations of an envelope whose row need not have the value; the contract requires it of all others."""
    fields: tuple[Column, ...] = ()
    """Of an object its fields; of an array or map what each element is, a column without a name."""

    @property
    def member(self) -> str:
        """Where the value is in the record, or in the object around: the column's name unless another is declared."""
        return self.physical_name or self.name

    @property
    def path(self) -> tuple[str, ...]:
        """The members that lead to the value, outermost first; none for the elements of an array or map."""
        return member_path(self.member)

    @property
    def kind(self) -> ColumnType:
        return COLUMN_TYPES[self.type]

    @property
    def depth(self) -> int:
        """How many objects and arrays are around the innermost value that it reads, the record apart."""
        inside = [1 + each.depth if self.kind.is_nested else 0 for each in self.fields]
        return max(len(self.path) - 1, 0) + max(inside, default=int(self.kind.is_nested))

    def inside(self, around: Column | None = None) -> Iterator[Column]:
        """Yield the column and those inside, named `customer.city` or `items[].price`, with paths from the record."""
        own = self
        if around is not None:
            name = f"{around.name}.{self.name}" if self.name else f"{around.name}[]"
            own = replace(self, name=name, physical_name=joined_path((*around.path, *(self.path or ("[]",)))))
        yield own
        for each in self.fields:
            yield from each.inside(own)

    def single(self) -> Iterator[Column]:
        """Yield of `inside` what a record has once: what is inside of objects, and no elements of arrays."""
        return (each for each in self.inside() if "[]" not in each.name)

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


MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")
"""A member that a path with dots names."""


def member_path(member: str) -> tuple[str, ...]:
    """Return the members of a path: `customer.id`, or `/customer/e.mail`, a JSON pointer, for names with dots."""
    if member.startswith("/"):
        return tuple(part.replace("~1", "/").replace("~0", "~") for part in member[1:].split("/"))
    return tuple(member.split(".")) if member else ()


def joined_path(path: Iterable[str]) -> str:
    """Return the text of a path: with dots, or as a JSON pointer for other names than MEMBER's."""
    parts = tuple(path)
    if all(MEMBER.fullmatch(part.replace("[]", "")) or part == "[]" for part in parts):
        return ".".join(parts).replace(".[]", "[]")
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


@dataclass(frozen=True)
class Limits:
    """What a record may be at most: in bytes, in objects and arrays in each other, in elements of one array or map."""

    bytes: int = 1_048_576
    depth: int = 32
    elements: int = 10_000


@dataclass(frozen=True)
class Contract:
    """All that a dataset promises.

    `columns` and `identity` (the columns whose absence is `missing_id`) describe one record, `payload` its format;
    `rules` apply to records and to silver as a whole, `gold` to gold tables by full name.
    """

    dataset: str
    version: str
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...]
    identity: tuple[str, ...]
    gold: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)
    latency: float | None = None
    """The maximum seconds between a record's Kafka time and its publication that readers are promised."""
    payload: PayloadFormat = JsonFormat()
    limits: Limits = Limits()
    children: tuple[Children, ...] = ()
    """What `pipeline.yaml` declares of elements that are rows of their own."""
    envelope: str = ""
    """What is around the row that the columns describe; its own columns come first."""

    def __hash__(self) -> int:
        return hash((self.dataset, self.version, self.columns))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """The columns and all that is inside of them, each named by its path in silver."""
        return tuple(each for column in self.columns for each in column.inside())

    @property
    def plain_columns(self) -> tuple[Column, ...]:
        """Those of `all_columns` that a record has once: what is inside of objects, and no elements of arrays."""
        return tuple(each for column in self.columns for each in column.single())

    @property
    def types(self) -> Mapping[str, str]:
        """The type of each column, and of all inside, in words."""
        return {column.name: column.type_text for column in self.all_columns}

    @property
    def record_rules(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.validates_records)

    def checks(self, table: str) -> tuple[Rule, ...]:
        """Return the rules that a checkpoint evaluates for a table; `table` is a full name (`gold.carrier_hours`)."""
        if table == f"silver.{self.dataset}":
            return tuple(rule for rule in self.rules if not rule.validates_records)
        return self.gold.get(table, ())


COMPATIBLE, ADDITIVE, BREAKING = "compatible", "additive", "breaking"
KINDS = (COMPATIBLE, ADDITIVE, BREAKING)
VERSION = re.compile(r"^(\d+)\.(\d+)\.(\d+)$")
RETYPED = "readers of silver get another type"
WIDER = "it has every value that it had, and records with others are accepted"
STRICTER = "records that were accepted may be rejected"
LOOSER = "records that were rejected may be accepted"


@dataclass(frozen=True)
class ContractChange:
    """One change: `part` of the contract, whether it is compatible, additive or breaking, and for whom."""

    part: str
    kind: str
    why: str


def contract_changes(base: Contract, fresh: Contract) -> list[ContractChange]:
    """Return the changes between two contracts of a dataset, the most severe first; wording alone is no change."""
    found = [*_columns(base, fresh), *_rules(base, fresh), *_latency(base.latency, fresh.latency)]
    if base.payload != fresh.payload:
        before, after = base.payload.described, fresh.payload.described
        why = f"{before} → {after}: records of the format before are rejected, those in bronze too"
        found.append(ContractChange("format", BREAKING, why))
    if base.identity != fresh.identity:
        why = f"({', '.join(base.identity)}) → ({', '.join(fresh.identity)}): other records are the same event"
        found.append(ContractChange("primaryKey", BREAKING, why))
    return sorted(found, key=lambda change: -KINDS.index(change.kind))


def required_version(base: Contract, changes: Iterable[ContractChange]) -> str | None:
    """Return the least version that expresses the severity of the changes; None where the version is no `1.2.3`.

    Breaking: the first number; additive: the second; compatible: the third.
    """
    found, kind = VERSION.match(base.version), max((change.kind for change in changes), key=KINDS.index, default=None)
    if found is None:
        return None
    major, minor, patch = map(int, found.groups())
    versions = {
        BREAKING: (major + 1, 0, 0),
        ADDITIVE: (major, minor + 1, 0),
        COMPATIBLE: (major, minor, patch + 1),
        None: (major, minor, patch),
    }
    return ".".join(map(str, versions[kind]))


def is_version_enough(version: str, required: str | None) -> bool:
    """Return whether a contract's version is the required one or a later one."""
    if required is None:
        return True
    return VERSION.match(version) is not None and _numbers(version) >= _numbers(required)


def version_problem(base: Contract, fresh: Contract, changes: Iterable[ContractChange]) -> str | None:
    """Return why the contract's version does not express its changes; None when it does."""
    required = required_version(base, changes)
    if is_version_enough(fresh.version, required):
        return None
    return f"version {fresh.version} must be {required} or later for this"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def _columns(base: Contract, fresh: Contract) -> Iterator[ContractChange]:
    before, after = ({column.name: column for column in contract.all_columns} for contract in (base, fresh))
    members = {column.path: column for column in base.all_columns if column.name not in after}
    renamed = {name: members[c.path] for name, c in after.items() if name not in before and c.path in members}
    for name in _outermost([name for name in before if name not in after and before[name] not in renamed.values()]):
        yield ContractChange(name, BREAKING, "removed: readers of silver lose the column")
    for name in _outermost([name for name in after if name not in before and name not in renamed]):
        kind, how = (BREAKING, "required, {} are rejected") if after[name].required else (ADDITIVE, "null in {}")
        yield ContractChange(name, kind, f"added: {how}".format(_lacking(after[name])))
    for name, old in renamed.items():
        yield ContractChange(name, BREAKING, _renamed(old, after[name]))
    olds = {**before, **renamed}
    for name in [name for name in after if name in olds]:
        yield from _column(olds[name], after[name])


def _outermost(names: Collection[str]) -> list[str]:
    """Return the names that lie in no column which is among them too."""
    return [name for name in names if not any(name.startswith((f"{other}.", f"{other}[")) for other in names)]


def _renamed(old: Column, new: Column) -> str:
    how = f"column {old.name} → {new.name}, read from the same field {new.member} of the record"
    return f"{how}: readers of silver lose {old.name}"


def _lacking(column: Column) -> str:
    return "records without it" if column.member == column.name else f"records without the field {column.member}"


def _column(old: Column, new: Column) -> Iterator[ContractChange]:
    if old.type_text != new.type_text:
        is_wider = old.kind.is_wider(old, new)
        how, kind, why = ("type widened ", ADDITIVE, WIDER) if is_wider else ("", BREAKING, RETYPED)
        yield ContractChange(new.name, kind, f"{how}{old.type_text} → {new.type_text}: {why}")
        if not is_wider:
            return
    if old.member != new.member:
        why = f"records that have {old.member} alone are {'rejected' if new.required else 'read without it'}"
        yield ContractChange(new.name, BREAKING, f"read from field {old.member} → {new.member} of the record: {why}")
    if old.required != new.required:
        why = STRICTER if new.required else "readers may meet null where they met none"
        yield ContractChange(new.name, BREAKING, f"{'required' if new.required else 'optional'} now: {why}")
    for part, is_stricter in STRICTER_WHEN.items():
        was, now = getattr(old, part), getattr(new, part)
        if was != now:
            kind, why = (BREAKING, STRICTER) if is_stricter(was, now) else (ADDITIVE, LOOSER)
            yield ContractChange(new.name, kind, f"{part} {_value_text(was)} → {_value_text(now)}: {why}")


def _value_text(value: Any) -> str:
    return "none" if value in (None, ()) else ", ".join(value) if isinstance(value, tuple) else str(value)


STRICTER_WHEN: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda was, now: now is not None and (was is None or now > was),
    "maximum": lambda was, now: now is not None and (was is None or now < was),
    "min_length": lambda was, now: now > was,
    "max_length": lambda was, now: now < was,
    "pattern": lambda was, now: now is not None,
    "values": lambda was, now: bool(now) and (not was or not set(was) <= set(now)),
    "future": lambda was, now: now < was,
    "past": lambda was, now: now is not None and (was is None or now < was),
}
"""By constraint of a column: whether a change makes it stricter. A changed pattern may be, so it counts as stricter."""


def _rules(base: Contract, fresh: Contract) -> Iterator[ContractChange]:
    before, after = _rules_by_name(base), _rules_by_name(fresh)
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name), after.get(name)
        if old != new:
            yield ContractChange(f"rule {name}", *_rule(old, new))


def _rules_by_name(contract: Contract) -> dict[str, Rule]:
    found = {f"{rule.name} ({', '.join(rule.columns[:1]) or 'silver'})": rule for rule in contract.rules}
    for table, rules in contract.gold.items():
        found |= {f"{table}: {rule.name} ({', '.join(rule.columns[:1]) or 'rows'})": rule for rule in rules}
    return found


def _rule(old: Rule | None, new: Rule | None) -> tuple[str, str]:
    how = "added" if old is None else "removed" if new is None else "changed"
    if new is not None and new.action == REJECT:
        return BREAKING, f"{how}: {STRICTER}"
    if old is not None and old.action == REJECT:
        return ADDITIVE, f"{how}: {LOOSER}"
    return COMPATIBLE, f"{how}: it rejects nothing"


def _latency(was: float | None, now: float | None) -> Iterator[ContractChange]:
    before, after = (float("inf") if promised is None else promised for promised in (was, now))
    if before != after:
        kind, why = (BREAKING, "less is promised") if after > before else (COMPATIBLE, "more is promised")
        yield ContractChange("service level latency", kind, f"{before:g} s → {after:g} s: {why}")
