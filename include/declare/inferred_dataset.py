"""The roles of a dataset's fields, inferred from a sample: identity, event time, and a first gold table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations

from include.declare.inferred_fields import InferredField, TimeForm, inferred_fields
from include.declare.sample_records import Fields, RecordSample, SampleUnusable
from include.declare.time_forms import moment

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
