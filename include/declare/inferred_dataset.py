"""The roles of a dataset's fields, inferred from a sample: identity, event time, and a first gold table.

Fields inferred from a sample: the type that every value has, whether a record must have it, formats of times.

A type is an entry of COLUMN_TYPES: an integer has as many bits as its values need, at least 32; a timestamp is ISO 8601
with a zone. A time of another form keeps its own type, and silver.py converts it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from itertools import combinations
from typing import Any
from unicodedata import combining, normalize

from include.declare.column_type import MAX_PRECISION, ColumnType, Profile
from include.declare.contract import joined_path
from include.declare.contract_columns import POINTED
from include.declare.contract_types import COLUMN_TYPES, default_type
from include.declare.sample_records import Fields, RecordSample, is_day, is_local, is_zoned, moment
from include.declare.sql_checks import is_column
from include.declare.yaml_declarations import NAME
from include.ground.record_coordinates import POSITION

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
    kafka = "when Kafka got the record"


SCALES = {TimeForm.seconds: 1, TimeForm.millis: 1_000, TimeForm.micros: 1_000_000}


@dataclass(frozen=True)
class InferredField:
    """One field: its column's name, and `path`, the members that lead to it in a record; the first `around` of them
    lead to the object that it is declared in, which never lacks it if it is `required`; no record does if `always`.
    `distinct` counts its values in the sample; `values` are an enumeration, `seen` one that is only suggested;
    `ahead`: a time that may be later than the record; `precision` and `scale` are of a number; `fields` are inside."""

    name: str
    path: tuple[str, ...]
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
    always: bool = False
    around: int = 0
    fields: tuple[InferredField, ...] = ()

    @property
    def member(self) -> str:
        """Where it is in the object that it is declared in."""
        return joined_path(self.path[self.around :])

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
        return "" if is_default or self.kind.is_custom else self.kind.text(self)

    @property
    def is_measured(self) -> bool:
        """Whether it is a number that can be added up."""
        return self.kind.profile is Profile.range and not self.is_time


def inferred_fields(
    records: Sequence[Fields], now: datetime, around: InferredField | None = None
) -> tuple[list[InferredField], dict[str, str]]:
    """Return the fields in the order of the sample, and for each that is left out why; `now` is of the sample.

    `around`: the field whose objects the records are.
    """
    path, always = (around.path, around.always) if around else ((), True)
    found: list[InferredField] = []
    left_out = {}
    for member in dict.fromkeys(member for record in records for member in record):
        values = [record[member] for record in records if record.get(member) is not None]
        if why := _reason_left_out(member, found, values):
            left_out[joined_path((*path, member)) if path else member or '""'] = why
            continue
        required = len(values) == len(records)
        own = InferredField(column_name(member), (*path, member), "", required, 0)
        own = replace(own, always=always and required, around=len(path))
        inner, missing = _inferred(own, values, now)
        found.append(inner)
        left_out |= missing
    return found, left_out


WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z](?!s(?![a-z]))[a-z])|[^A-Za-z0-9_]+")
"""Between two words of a name; `IDs` is one."""


def column_name(member: str) -> str:
    """Return the column's name for a field of the records: `clientIp` and `client-ip` become `client_ip`."""
    words = WORD_ENDS.sub("_", "".join(sign for sign in normalize("NFKD", member) if not combining(sign)))
    found = words.lower().lstrip("_")
    return found if member.endswith("_") else found.rstrip("_")


def _reason_left_out(member: str, found: Sequence[InferredField], values: Sequence[Any]) -> str:
    kinds, name = {_kind(value) for value in values}, column_name(member)
    if not POINTED.fullmatch(member) or not NAME.fullmatch(name):
        return "is not a name of a column: letters, digits, _ and -, beginning with a letter"
    if other := next((field for field in found if field.path[-1].lower() == member.lower()), None):
        also = ", so each record with both is rejected (duplicate_key)" if len(other.path) == 1 else ""
        return f"differs from {other.member} by case alone{also}"
    if name in {field.name for field in found}:
        return f"would be the second column {name}"
    if not kinds:
        return "is null in every record"
    if kinds & {"list", "object"}:
        return ""
    if len(kinds - {"integer", "number"}) > 1 or (len(kinds) > 1 and not kinds <= {"integer", "number"}):
        return f"has values of several types: {', '.join(sorted(kinds))}"
    if kinds <= {"integer", "number"} and sum(_digits(values)) > MAX_PRECISION:
        return f"has numbers of more than {MAX_PRECISION} digits"
    return ""


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", Decimal: "number", float: "number", str: "string", list: "list"}
    return kinds.get(type(value), "object")


Inferred = tuple[InferredField, dict[str, str]]
"""A field, and what is left out inside of it."""
MOST_KEYS, SHARE_OF_KEYS, DEEPEST = 30, 0.2, 12
"""An object with more different keys, each in a smaller share of the records, has any keys; deeper parts are kept."""


def _inferred(own: InferredField, values: Sequence[Any], now: datetime) -> Inferred:
    kinds = {_kind(value) for value in values}
    if kinds & {"list", "object"}:
        is_one = len(kinds) == 1 and len(own.path) < DEEPEST
        return NESTED[next(iter(kinds))](own, values, now) if is_one else (replace(own, type="variant"), {})
    return _scalar(own, values, now), {}


def _scalar(own: InferredField, values: Sequence[Any], now: datetime) -> InferredField:
    own, kind = replace(own, distinct=len(set(values))), _kind(values[0])
    if kind == "boolean":
        return replace(own, type="boolean")
    return _text_field(own, values, now) if kind == "string" else _number_field(own, values)


def _object(own: InferredField, values: Sequence[Any], now: datetime) -> Inferred:
    keys = Counter(key for value in values for key in value)
    if len(keys) > MOST_KEYS and max(keys.values()) < SHARE_OF_KEYS * len(values):
        inside = [each for value in values for each in value.values()]
        return _elements(replace(own, type="map"), inside, now)
    fields, left_out = inferred_fields(values, now, own)
    return (replace(own, type="object", fields=tuple(fields)) if fields else replace(own, type="variant")), left_out


def _elements(own: InferredField, values: Sequence[Any], now: datetime) -> Inferred:
    """Return an array or map by its elements; without any, or with several kinds, it is kept as it is."""
    given = [value for value in values if value is not None]
    kinds = {_kind(value) for value in given}
    if not kinds or (len(kinds) > 1 and not kinds <= {"integer", "number"}):
        return replace(own, type="variant"), {}
    required = len(given) == len(values)
    each = InferredField("", (*own.path, "[]"), "", required, 0, around=len(own.path) + 1)
    item, left_out = _inferred(each, given, now)
    return replace(own, fields=(item,)), left_out


def _array(own: InferredField, values: Sequence[Any], now: datetime) -> Inferred:
    return _elements(replace(own, type="array"), [each for value in values for each in value], now)


NESTED: Mapping[str, Callable[[InferredField, Sequence[Any], datetime], Inferred]] = {"object": _object, "list": _array}


def _text_field(own: InferredField, values: Sequence[str], now: datetime) -> InferredField:
    form = _time_form(own.name, values)
    if form is TimeForm.zoned:
        ahead = any(moment(value) > now for value in values)
        return replace(own, type="timestamp", form=form, ahead=ahead)
    longest = max(len(value.encode()) for value in values)
    few = () if form is not TimeForm.none else _few_values(values)
    codes = len(values) >= LARGE_SAMPLE and all(CODE.fullmatch(value) for value in few)
    accepted, seen = (few, ()) if codes else ((), few)
    return replace(own, type="string", form=form, values=accepted, seen=seen, longest=longest)


def _number_field(own: InferredField, values: Sequence[Any]) -> InferredField:
    form = _epoch(own.name, values)
    if form is TimeForm.none and all(isinstance(value, int) for value in values):
        for name in INTEGERS:
            if all(COLUMN_TYPES[name].has(LATER * value) for value in values):
                return replace(own, type=name)
    whole, scale = _digits(values)
    # A sample of prices without a third decimal does not prove that there is none.
    scale = min(scale + SPARE_SCALE, MAX_PRECISION - whole) if scale else 0
    spare = min(SPARE_DIGITS, MAX_PRECISION - whole - scale)
    return replace(own, type="number", form=form, precision=max(whole + scale + spare, 1), scale=scale)


def _digits(values: Iterable[Any]) -> tuple[int, int]:
    """Return the most digits before and after the point."""
    numbers = [Decimal(str(value)) for value in values]
    whole = max((max(number.adjusted() + 1, 1) for number in numbers if number.is_finite()), default=1)
    return whole, max((max(-int(number.normalize().as_tuple().exponent), 0) for number in numbers), default=0)


def _time_form(name: str, values: Sequence[str]) -> TimeForm:
    if all(map(is_zoned, values)):
        return TimeForm.zoned
    if all(map(is_local, values)):
        return TimeForm.local
    if all(map(is_day, values)):
        return TimeForm.day
    return _epoch(name, [int(value) for value in values]) if all(map(_is_digits, values)) else TimeForm.none


def _is_digits(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) <= 16


def _epoch(name: str, values: Sequence[Any]) -> TimeForm:
    """Return the unit of whole numbers that lie between 1990 and 2100 in it, of a field that is named like a time."""
    if not TIME_NAME.search(name) or not all(isinstance(value, int) for value in values):
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


ID_NAME = re.compile(r"^(id|uuid|guid|key|no|number)$|_(id|uuid|guid|key|no|number)$")
EVENT_TIMES = re.compile(
    r"^(occurred|event|happened|observed|measured|recorded|read|created|sent)_|^(ts|time|timestamp)$"
)
KAFKA_TIME = InferredField("_timestamp", (), "timestamp", True, 0, TimeForm.kafka)
"""The event time of records that have none."""
FORMS = (*(TimeForm.zoned, TimeForm.millis, TimeForm.micros, TimeForm.seconds), TimeForm.local, TimeForm.day)
MOST_GROUPS, MOST_MEASURES, MOST_LIKELY = 100, 3, 12
LEAST_DIFFERENT = 20
"""So many records must differ in a field that is not named like an id before it alone may be the identity."""
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
    def keys(self) -> tuple[str, ...]:
        """The columns of the identity that the contract has."""
        return tuple(field.name for field in self.fields if field.name in self.identity)

    @property
    def pointed(self) -> tuple[tuple[str, str, str], ...]:
        """Columns that are read from elsewhere than the fields are: name, logical type, JSON pointer."""
        return ()

    @property
    def key_paths(self) -> tuple[tuple[str, ...], ...]:
        """Where the identity's fields are in the records."""
        return tuple(field.path for field in self.fields if field.name in self.keys)


def inferred_dataset(name: str, topic: str, sample: RecordSample, now: datetime) -> InferredDataset:
    """Infer dataset `name` from a sample."""
    tree, left_out = inferred_fields(sample.fields, now)
    fields = list(_single(tree))
    time = _time(fields)
    identity, reason = _identity(sample, name, fields)
    free = [field for field in fields if field.name not in identity and not field.is_time]
    # The first gold table counts `records`.
    group = _group([each for each in free if is_column(each.name) and each.name != "records"], len(sample.fields))
    chosen = [field for field in fields if field in (time, group) or field.name in identity]
    columns = list(_with_ahead(_with_columns(tree, chosen), time, sample.fields))
    return InferredDataset(
        name=name,
        topic=topic,
        origin=sample.origin,
        records=sample.records,
        fields=tuple(columns),
        left_out=left_out,
        unusual=sample.unusual,
        identity=tuple(field.name for field in columns if field.name in identity) or POSITION,
        identity_reason=reason,
        time=time,
        event_time=time.name if time.form is TimeForm.zoned else _free_name("event_time", fields),
        group=group,
        measured=tuple(
            field for field in free if field in tree and field.is_measured and not ID_NAME.search(field.name)
        )[:MOST_MEASURES],
    )


def value_at(record: Any, path: Sequence[str]) -> Any:
    """Return what a path leads to in a record; None if it leads nowhere."""
    for member in path:
        record = record.get(member) if isinstance(record, dict) else None
    return record


def _single(tree: Sequence[InferredField]) -> Iterator[InferredField]:
    """Yield the fields that a record has once, each as a column of its own; those of the record itself come first."""
    taken = {field.name for field in tree}
    yield from (field for field in tree if not field.kind.is_nested and field.type != "variant")
    for field in (inner for outer in tree if outer.type == "object" for inner in _single(outer.fields)):
        name = "_".join(map(column_name, field.path))[:63]
        if name not in taken:
            taken.add(name)
            yield replace(field, name=name, around=0, required=field.always)


def _with_columns(tree: Sequence[InferredField], chosen: Sequence[InferredField]) -> list[InferredField]:
    """Return the fields, with those that are chosen inside of objects as columns of their own, after these objects."""
    lifted = {field.path: field for field in chosen if len(field.path) > 1}
    found = []
    for field in tree:
        found += [_loose(field, lifted), *(each for path, each in lifted.items() if path[0] == field.path[0])]
    return found


def _loose(field: InferredField, paths: Collection[tuple[str, ...]]) -> InferredField:
    """Return a field in which the values at these paths may be any: a column of its own says what each must be."""
    if field.path in paths and field.around:
        return replace(field, required=False, values=(), seen=())
    inner = tuple(_loose(each, paths) for each in field.fields) if field.type == "object" else field.fields
    return replace(field, fields=inner)


def _time(fields: Sequence[InferredField]) -> InferredField:
    """Return the event time: a required time, in the best form, named like one, the first of them; or Kafka's."""
    times = [field for field in fields if field.is_time and field.required]
    return min(times, key=lambda field: (FORMS.index(field.form), *_unlikely(field, EVENT_TIMES)), default=KAFKA_TIME)


def _unlikely(field: InferredField, names: re.Pattern[str]) -> tuple[bool, bool, bool]:
    """Return what speaks against a field, the most first: it is inside and always the same, its name, it is inside."""
    is_inside = len(field.path) > 1
    return is_inside and field.distinct == 1, not names.search(field.name), is_inside


def _identity(sample: RecordSample, name: str, fields: Sequence[InferredField]) -> tuple[tuple[str, ...], str]:
    count = f"{len(sample.fields):,} different records of the sample"
    for found in likely_keys(name, fields):
        values = {tuple(value_at(record, field.path) for field in found) for record in sample.fields}
        names = tuple(field.name for field in fields if field in found)
        if len(values) == len(sample.fields):
            return names, f"different in each of {count}"
        repeated = len(sample.fields) - len(values)
        if len(found) == 1 and ID_NAME.search(found[0].name) and repeated <= MOST_REPEATED * len(sample.fields):
            return names, f"different in all but {repeated:,} of {count}; those repeat one of the others"
    every = tuple(field.name for field in fields if field.required)
    if not every:
        return (), "no field is one value in every record, so each record of Kafka counts"
    return every, f"no field and no pair of fields is different in each of {count}, so all that every record has"


def likely_keys(name: str, fields: Sequence[InferredField]) -> Iterator[tuple[InferredField, ...]]:
    """Yield possible identities, the most likely first: one field, then a field and a time, then two fields."""
    fit = [field for field in fields if field.required and field.type != "boolean" and not field.scale]
    plain = [field for field in fit if not field.is_time]
    named = [f"{name}_id", f"{name.removesuffix('s')}_id", "event_id", "message_id", "record_id", "id", "uuid"]
    ranked = sorted(plain, key=lambda f: (named.index(f.name) if f.name in named else 99, *_unlikely(f, ID_NAME)))
    texts = [field for field in ranked if field.type == "string" and field.distinct >= LEAST_DIFFERENT]
    yield from ((field,) for field in ranked if ID_NAME.search(field.name) or field in texts)
    # A pair is looked for among the likely ones only: a record may have hundreds of fields inside.
    likely, times = ranked[:MOST_LIKELY], [field for field in fit if field.is_time][:MOST_LIKELY]
    yield from ((field, time) for field in likely for time in times)
    yield from combinations(likely, 2)


def _group(fields: Sequence[InferredField], records: int) -> InferredField | None:
    """Return the field by which records are best counted: one of few values, or the text with the fewest."""
    most = min(MOST_GROUPS, records // 2)
    texts = [field for field in fields if field.type == "string" and field.required and 1 < field.distinct <= most]
    fit = [field for field in texts if len(field.path) == 1] or texts
    return min(fit, key=lambda field: (not (field.values or field.seen), field.distinct), default=None)


def _with_ahead(
    fields: Sequence[InferredField], time: InferredField, records: Sequence[Fields]
) -> Iterator[InferredField]:
    """Yield the fields; a time that is later than the event itself in some record may lie in the future."""
    for field in fields:
        later = field.form is TimeForm.zoned is time.form and any(
            moment(value) > moment(value_at(record, time.path))
            for record in records
            if field is not time and (value := value_at(record, field.path))
        )
        yield replace(field, ahead=True) if later else field


def _free_name(name: str, fields: Sequence[InferredField]) -> str:
    taken = {field.name for field in fields}
    return next(each for each in (name, f"{name}_utc", "headrace_event_time") if each not in taken)
