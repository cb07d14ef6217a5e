"""The roles of a dataset's fields, inferred from a sample: identity, event time, and a first gold table.

Fields inferred from a sample: the type that every value has, whether a record must have it, formats of times.

A type is an entry of COLUMN_TYPES: an integer has as many bits as its values need, at least 32; a timestamp is ISO 8601
with a zone. A time of another form keeps its own type, and silver.py converts it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from itertools import combinations
from typing import Any

from include.declare.column_type import MAX_PRECISION, ColumnType, Profile
from include.declare.contract_file import MEMBER
from include.declare.contract_types import COLUMN_TYPES, default_type
from include.declare.portable_regex import DEFAULT_STRING_BYTES
from include.declare.sample_records import Fields, RecordSample, SampleUnusable, is_day, is_local, is_zoned, moment
from include.declare.yaml_declarations import NAME

TIME_NAME = re.compile(r"(^|_)(at|ts|time|timestamp|date|datetime|when|created|updated|on)(_|$)|_(ms|us|at|ts)$")
INTEGERS = ("integer", "bigint")
"""The types of whole numbers, the narrowest first; what is wider is a decimal."""
LATER = 10
"""Later values may be so many times as large."""
FIRST_YEAR, LAST_YEAR = datetime(1990, 1, 1, tzinfo=UTC).timestamp(), datetime(2100, 1, 1, tzinfo=UTC).timestamp()
CODE = re.compile(r"[A-Z0-9][A-Z0-9_]{0,15}|[a-z]{1,2}")
"""A value that people chose from a list: `EUR`, `PAID`, `f`. A sample never has all names of cities or shops."""
LARGE_SAMPLE = 200
"""A sample of fewer records says little about what others lack."""
ENUM_VALUES, ENUM_TIMES = 12, 10
"""An enumeration has at most so many values, and each of them at least so often."""
SPARE_DIGITS, SPARE_SCALE = 3, 2


class TimeForm(StrEnum):
    """How a field writes a time, if it does."""

    none = ""
    zoned = "ISO 8601 with a zone"
    local = "a date and time that the contract's type timestamp does not read"
    day = "a date"
    seconds = "seconds since 1970"
    millis = "milliseconds since 1970"
    micros = "microseconds since 1970"


SCALES = {TimeForm.seconds: 1, TimeForm.millis: 1_000, TimeForm.micros: 1_000_000}


@dataclass(frozen=True)
class InferredField:
    """One field: its column's name, and `member`, its name in the records. `distinct` counts its values in the sample;
    `values` are an enumeration, `seen` one that is only suggested; `ahead`: a time that may be
    later than the record; `precision` and `scale` are of a number."""

    name: str
    member: str
    type: str
    required: bool
    distinct: int
    form: TimeForm = TimeForm.none
    values: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    precision: int = 0
    scale: int = 0
    longest: int = 0
    ahead: bool = False

    @property
    def is_time(self) -> bool:
        """Whether its values are times in some form."""
        return self.form is not TimeForm.none

    @property
    def kind(self) -> ColumnType:
        return COLUMN_TYPES[self.type]

    @property
    def physical_type(self) -> str:
        """How the contract names the type; empty when the logical type says it."""
        is_default = self.kind is default_type(self.kind.logical) and not self.precision
        return "" if is_default else self.kind.text(self)

    @property
    def is_measured(self) -> bool:
        """Whether it is a number that can be added up."""
        return self.kind.profile is Profile.range and not self.is_time


def inferred_fields(records: Sequence[Fields], now: datetime) -> tuple[list[InferredField], dict[str, str]]:
    """Return the fields in the order of the sample, and for each that is left out why; `now` is of the sample."""
    found: list[InferredField] = []
    left_out = {}
    for member in dict.fromkeys(member for record in records for member in record):
        values = [record[member] for record in records if record.get(member) is not None]
        if why := _reason_left_out(member, found, values):
            left_out[member] = why
        else:
            found.append(_inferred(member, values, len(records), now))
    return found, left_out


def column_name(member: str) -> str:
    """Return the column's name for a field of the records: `clientIp` and `client-ip` become `client_ip`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|-", "_", member)
    return words.lower().lstrip("_")


def _reason_left_out(member: str, found: Sequence[InferredField], values: Sequence[Any]) -> str:
    kinds, name = {_kind(value) for value in values}, column_name(member)
    if not MEMBER.fullmatch(member) or not NAME.fullmatch(name):
        return "is not a name of a column: letters, digits, _ and -, beginning with a letter"
    if name in {field.name for field in found}:
        return f"would be the second column {name}"
    if other := next((field.member for field in found if field.member.lower() == member.lower()), None):
        return f"differs from {other} by case alone"
    if not kinds:
        return "is null in every record"
    if kinds & {"list", "object"}:
        return "is nested; a record is flat"
    if len(kinds - {"integer", "number"}) > 1 or (len(kinds) > 1 and not kinds <= {"integer", "number"}):
        return f"has values of several types: {', '.join(sorted(kinds))}"
    if kinds <= {"integer", "number"} and sum(_digits(values)) > MAX_PRECISION:
        return f"has numbers of more than {MAX_PRECISION} digits"
    return ""


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", Decimal: "number", float: "number", str: "string", list: "list"}
    return kinds.get(type(value), "object")


def _inferred(member: str, values: Sequence[Any], records: int, now: datetime) -> InferredField:
    required, distinct = len(values) == records, len(set(values))
    kind = _kind(values[0])
    if kind == "boolean":
        return InferredField(column_name(member), member, "boolean", required, distinct)
    if kind == "string":
        return _text_field(member, values, required, distinct, now)
    return _number_field(member, values, required, distinct)


def _text_field(member: str, values: Sequence[str], required: bool, distinct: int, now: datetime) -> InferredField:
    form = _time_form(member, values)
    if form is TimeForm.zoned:
        ahead = any(moment(value) > now for value in values)
        return InferredField(column_name(member), member, "timestamp", required, distinct, form, ahead=ahead)
    longest = max(len(value.encode()) for value in values)
    few = () if form is not TimeForm.none else _few_values(values)
    codes = len(values) >= LARGE_SAMPLE and all(CODE.fullmatch(value) for value in few)
    accepted, seen = (few, ()) if codes else ((), few)
    return InferredField(
        column_name(member), member, "string", required, distinct, form, accepted, seen, longest=longest
    )


def _number_field(member: str, values: Sequence[Any], required: bool, distinct: int) -> InferredField:
    form = _epoch(member, values)
    if form is TimeForm.none and all(isinstance(value, int) for value in values):
        for name in INTEGERS:
            if all(COLUMN_TYPES[name].has(LATER * value) for value in values):
                return InferredField(column_name(member), member, name, required, distinct)
    whole, scale = _digits(values)
    # A sample of prices without a third decimal does not prove that there is none.
    scale = min(scale + SPARE_SCALE, MAX_PRECISION - whole) if scale else 0
    spare = min(SPARE_DIGITS, MAX_PRECISION - whole - scale)
    return InferredField(
        column_name(member),
        member,
        "number",
        required,
        distinct,
        form,
        precision=max(whole + scale + spare, 1),
        scale=scale,
    )


def _digits(values: Iterable[Any]) -> tuple[int, int]:
    """Return the most digits before and after the point."""
    numbers = [Decimal(str(value)) for value in values]
    whole = max((max(number.adjusted() + 1, 1) for number in numbers if number.is_finite()), default=1)
    return whole, max((max(-int(number.normalize().as_tuple().exponent), 0) for number in numbers), default=0)


def _time_form(member: str, values: Sequence[str]) -> TimeForm:
    if all(map(is_zoned, values)):
        return TimeForm.zoned
    if all(map(is_local, values)):
        return TimeForm.local
    if all(map(is_day, values)):
        return TimeForm.day
    return _epoch(member, [int(value) for value in values]) if all(map(_is_digits, values)) else TimeForm.none


def _is_digits(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) <= 16


def _epoch(member: str, values: Sequence[Any]) -> TimeForm:
    """Return the unit of whole numbers that lie between 1990 and 2100 in it, of a field that is named like a time."""
    if not TIME_NAME.search(column_name(member)) or not all(isinstance(value, int) for value in values):
        return TimeForm.none
    for form, scale in SCALES.items():
        if all(FIRST_YEAR * scale <= value < LAST_YEAR * scale for value in values):
            return form
    return TimeForm.none


def _few_values(values: Sequence[str]) -> tuple[str, ...]:
    """Return the values when they are few and each is frequent."""
    counts = Counter(values)
    is_few = 2 <= len(counts) <= ENUM_VALUES and min(counts.values()) >= ENUM_TIMES
    return tuple(sorted(counts)) if is_few else ()


def longest_accepted(field: InferredField) -> int:
    """Return the maximum length of a text in bytes: generous, since the sample may lack the longest."""
    return min(DEFAULT_STRING_BYTES, max(256, 4 * field.longest))


ID_NAME = re.compile(r"^(id|uuid|guid|key|no|number)$|_(id|uuid|guid|key|no|number)$")
EVENT_TIMES = re.compile(
    r"^(occurred|event|happened|observed|measured|recorded|read|created|sent)_|^(ts|time|timestamp)$"
)
FORMS = (*(TimeForm.zoned, TimeForm.millis, TimeForm.micros, TimeForm.seconds), TimeForm.local, TimeForm.day)
MOST_GROUPS, MOST_MEASURES = 100, 3
MOST_REPEATED = 0.005
"""Share of records that may repeat the identity of another one with other content, if the field is named like an id."""


@dataclass(frozen=True)
class InferredDataset:
    """A dataset inferred from a sample. `unusual`: records that were not considered, by fault.

    `identity_reason`: how the identity was found; `event_time` is a column of silver, `time` the field it is computed
    from; `group`: the key of the gold table, if a field is fit for one.
    """

    name: str
    topic: str
    origin: str
    records: int
    fields: tuple[InferredField, ...]
    left_out: dict[str, str]
    unusual: Mapping[str, int]
    identity: tuple[str, ...]
    identity_reason: str
    time: InferredField
    event_time: str
    group: InferredField | None
    measured: tuple[InferredField, ...]

    @property
    def key_members(self) -> tuple[str, ...]:
        """The names that the identity's fields have in the records."""
        return tuple(field.member for field in self.fields if field.name in self.identity)


def inferred_dataset(name: str, topic: str, sample: RecordSample, now: datetime) -> InferredDataset:
    """Infer dataset `name` from a sample. Raises SampleUnusable when no field is a time or none can be
    an identity."""
    fields, left_out = inferred_fields(sample.fields, now)
    time = _time(sample, fields, left_out)
    identity, reason = _identity(sample, name, fields)
    free = [field for field in fields if field.name not in identity and not field.is_time]
    return InferredDataset(
        name=name,
        topic=topic,
        origin=sample.origin,
        records=sample.records,
        fields=tuple(_with_ahead(fields, time, sample.fields)),
        left_out=left_out,
        unusual=sample.unusual,
        identity=identity,
        identity_reason=reason,
        time=time,
        event_time=time.name if time.form is TimeForm.zoned else _free_name("event_time", fields),
        group=_group(free, len(sample.fields)),
        measured=tuple(field for field in free if field.is_measured and not ID_NAME.search(field.name))[:MOST_MEASURES],
    )


def _time(sample: RecordSample, fields: Sequence[InferredField], left_out: dict[str, str]) -> InferredField:
    """Return the event time: a required time, in the best form, named like one, the first of them."""
    times = [field for field in fields if field.is_time and field.required]
    if not times:
        names = ", ".join([*(field.name for field in fields), *left_out])
        raise SampleUnusable(sample.origin, f"no field is a time in every record (fields: {names})")
    return min(times, key=lambda field: (FORMS.index(field.form), not EVENT_TIMES.search(field.name)))


def _identity(sample: RecordSample, name: str, fields: Sequence[InferredField]) -> tuple[tuple[str, ...], str]:
    count = f"{len(sample.fields):,} different records of the sample"
    for found in _candidates(name, fields):
        values = {tuple(record.get(field.member) for field in found) for record in sample.fields}
        names = tuple(field.name for field in fields if field in found)
        if len(values) == len(sample.fields):
            return names, f"different in each of {count}"
        repeated = len(sample.fields) - len(values)
        if len(found) == 1 and ID_NAME.search(found[0].name) and repeated <= MOST_REPEATED * len(sample.fields):
            return names, f"different in all but {repeated:,} of {count}; those repeat one of the others"
    every = tuple(field.name for field in fields if field.required)
    return every, f"no field and no pair of fields is different in each of {count}, so all that every record has"


def _candidates(name: str, fields: Sequence[InferredField]) -> Iterator[tuple[InferredField, ...]]:
    """Yield possible identities, the most likely first: one field, then a field and a time, then two fields."""
    fit = [field for field in fields if field.required and field.type != "boolean" and not field.scale]
    plain = [field for field in fit if not field.is_time]
    named = [f"{name}_id", f"{name.removesuffix('s')}_id", "event_id", "record_id", "id", "uuid"]
    ranked = sorted(plain, key=lambda f: (named.index(f.name) if f.name in named else 99, not ID_NAME.search(f.name)))
    yield from ((field,) for field in ranked if ID_NAME.search(field.name) or field.type == "string")
    times = [field for field in fit if field.is_time]
    yield from ((field, time) for field in ranked for time in times)
    yield from combinations(ranked, 2)


def _group(fields: Sequence[InferredField], records: int) -> InferredField | None:
    """Return the field by which records are best counted: one of few values, or the text with the fewest."""
    most = min(MOST_GROUPS, records // 2)
    texts = [field for field in fields if field.type == "string" and field.required and 1 < field.distinct <= most]
    return min(texts, key=lambda field: (not (field.values or field.seen), field.distinct), default=None)


def _with_ahead(
    fields: Sequence[InferredField], time: InferredField, records: Sequence[Fields]
) -> Iterator[InferredField]:
    """Yield the fields; a time that is later than the event itself in some record may lie in the future."""
    for field in fields:
        later = field.form is TimeForm.zoned is time.form and any(
            moment(record[field.member]) > moment(record[time.member])
            for record in records
            if record.get(field.member) and field is not time
        )
        yield replace(field, ahead=True) if later else field


def _free_name(name: str, fields: Sequence[InferredField]) -> str:
    taken = {field.name for field in fields}
    return next(each for each in (name, f"{name}_utc", "headrace_event_time") if each not in taken)
