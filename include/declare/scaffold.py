"""The texts of a new dataset's files. Users read and correct them, so each guess has a comment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from include.declare.dataset import expected_path
from include.declare.inferred_changes import InferredChanges
from include.declare.inferred_dataset import (
    KAFKA_TIME,
    LARGE_SAMPLE,
    InferredDataset,
    InferredField,
    TimeForm,
    longest_accepted,
    value_at,
)
from include.declare.sample_records import RecordSample
from include.declare.yaml_declarations import NAME, NAME_RULE
from include.ground.errors import Terminal
from include.ground.settings import Settings

LOCAL_TIME = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d"
DAY_TIME = r"^\d{4}-\d\d-\d\d$"
EPOCH_TEXT = {TimeForm.seconds: r"^\d{9,10}$", TimeForm.millis: r"^\d{12,13}$", TimeForm.micros: r"^\d{15,16}$"}
CONVERSIONS = {
    TimeForm.seconds: 'F.timestamp_seconds(F.col("{name}").cast("long"))',
    TimeForm.millis: 'F.timestamp_millis(F.col("{name}").cast("long"))',
    TimeForm.micros: 'F.timestamp_micros(F.col("{name}").cast("long"))',
    TimeForm.local: 'F.col("{name}").cast("timestamp")',
    TimeForm.day: 'F.col("{name}").cast("timestamp")',
    TimeForm.kafka: 'F.col("{name}")',
}


def contract_text(dataset: InferredDataset) -> str:
    """Return contract.yaml."""
    roles = Roles(dataset.identity, dataset.time, dataset.records >= LARGE_SAMPLE)
    properties = (property_text(field, "      ", roles) for field in dataset.fields)
    return CONTRACT.format(
        name=dataset.name,
        sample=f"Inferred from {dataset.records:,} records of {_comment(dataset.origin)}.",
        left_out="".join(
            [f"# left out: {_comment(name)} {why}\n" for name, why in dataset.left_out.items()]
            + [f"# not considered: {_comment(fault)} ({count:,})\n" for fault, count in dataset.unusual.items()]
        ),
        reason=f"      # {_primary_key(dataset)}: {dataset.identity_reason}.",
        properties="\n".join([*_pointed(dataset), *properties]),
    )


def _primary_key(dataset: InferredDataset) -> str:
    return f"The primary key ({', '.join(dataset.identity)}) is a guess" if dataset.keys else "There is no primary key"


def _pointed(dataset: InferredDataset) -> Iterator[str]:
    for name, kind, pointer in dataset.pointed:
        place = f"physicalName: {pointer}, required: true, primaryKey: true"
        yield f"      - {{name: {name}, logicalType: {kind}, {place}}}"


def pipeline_text(dataset: InferredDataset) -> str:
    """Return pipeline.yaml."""
    return PIPELINES[type(dataset)](dataset)


def _changes_pipeline(dataset: InferredChanges) -> str:
    columns = ", ".join(f"{_key(name)}: {_key(name)}" for name in dataset.kept)
    sequence = f", sequence: [{', '.join(dataset.sequence)}]" if dataset.sequence else ""
    return CHANGES.format(
        name=dataset.name,
        short=dataset.name[:53],
        topic=json.dumps(dataset.topic),
        event_time=dataset.event_time,
        identity=", ".join(map(_key, dataset.identity)),
        keys=", ".join(map(_key, dataset.keys)),
        sequence=sequence,
        columns=columns,
    )


def _records_pipeline(dataset: InferredDataset) -> str:
    day = "day" if all(field.name != "day" for field in dataset.fields) else "event_day"
    group = dataset.group
    converted = f", which silver.py makes of {dataset.time.name}" if dataset.event_time != dataset.time.name else ""
    own = "The time at which Kafka got the record" if dataset.time is KAFKA_TIME else "The record's own time"
    return PIPELINE.format(
        name=dataset.name,
        topic=json.dumps(dataset.topic),
        time=f"{own}{converted}",
        event_time=_key(dataset.event_time),
        same=SAME if dataset.keys else ALL_DIFFERENT,
        identity=", ".join(map(_key, dataset.identity)),
        table=gold_name(dataset),
        day=day,
        question=f"How many records were there, by {group.name} and day?" if group else "How many records, by day?",
        keys=f"    keys: [{_key(group.name)}]\n" if group else "",
        measures="\n".join(_measures(dataset)),
        children="".join(_children(dataset)),
    )


def _children(dataset: InferredDataset) -> Iterator[str]:
    """Yield how the elements of arrays become rows, as comments."""
    arrays = [each.name for each in dataset.fields if each.type == "array" and each.fields[0].type == "object"]
    if arrays:
        yield "\n# A row for each element, in a table of its own (the contract's `items` then need `required: true`):\n"
        yield "# children:\n"
    yield from (f"#   {each.lower()}: {{from: {_key(each)}}}\n" for each in arrays)


def silver_text(dataset: InferredDataset) -> str:
    """Return silver.py."""
    time, made = dataset.time, dataset.event_time
    if made == time.name:
        does = "Return the accepted records; add or derive columns here, one row for each record."
        return SILVER.format(name=dataset.name, how="as it is", imports="", does=does, made="")
    zone = ", read as UTC unless it has a zone" if time.form in (TimeForm.local, TimeForm.day) else ""
    return SILVER.format(
        name=dataset.name,
        how="with its time as a timestamp",
        imports="from pyspark.sql import functions as F\n",
        does=f"Add `{made}`, the time in `{time.name}`{zone}; a record whose time does not exist is rejected.",
        made=f'.withColumn("{made}", {CONVERSIONS[time.form].format(name=time.name)})',
    )


def gold_name(dataset: InferredDataset) -> str:
    """Return the name of the first gold table."""
    return f"{dataset.name[:58]}_days"


@dataclass(frozen=True)
class Roles:
    """Which fields are the identity and the event time, and whether the sample says what records lack."""

    identity: Sequence[str] = ()
    time: InferredField | None = None
    is_large: bool = False

    def is_identity(self, field: InferredField) -> bool:
        return field.around == 0 and field.name in self.identity

    def is_time(self, field: InferredField) -> bool:
        return self.time is not None and field.around == 0 and field.name == self.time.name


NO_ROLES = Roles()


def property_text(field: InferredField, indent: str, roles: Roles = NO_ROLES) -> str:
    """Return a property, and below it what is inside, a line each."""
    facts = _facts(roles, field)
    suggested = f"{indent}# seen: {_comment(', '.join(field.seen))}; to accept only these: {_accepted(field.seen)}\n"
    own = f"{suggested if field.seen else ''}{indent}- {{{', '.join(facts)}}}"
    if not field.fields:
        return own
    return "\n".join([f"{indent}- {facts[0]}", *_inside(roles, field, facts[1:], f"{indent}  ")])


def _inside(roles: Roles, field: InferredField, facts: Sequence[str], indent: str) -> Iterator[str]:
    """Yield the lines of a property, or of each element, that has others inside."""
    yield from (f"{indent}{fact}" for fact in facts)
    if field.type == "object":
        yield f"{indent}properties:"
        yield from (property_text(each, f"{indent}  ", roles) for each in field.fields)
        return
    (item,), key = field.fields, "items"
    inner = _facts(roles, item)[1:]
    if field.type == "map":
        yield f"{indent}customProperties:"
        yield f"{indent}  - property: additionalProperties"
        indent, key = f"{indent}    ", "value"
    if item.fields:
        yield f"{indent}{key}:"
        yield from _inside(roles, item, inner, f"{indent}  ")
    else:
        yield f"{indent}{key}: {{{', '.join(inner)}}}"


def _facts(roles: Roles, field: InferredField) -> list[str]:
    facts = [f"name: {_key(field.name)}", f"logicalType: {field.kind.logical}"]
    facts += [f"physicalName: {_key(field.member)}"] if field.name and field.member != field.name else []
    if field.physical_type:
        facts.append(f'physicalType: "{field.physical_type}"')
    is_time, is_key = roles.is_time(field), roles.is_identity(field) or roles.is_time(field)
    facts += ["required: true"] if field.required and (is_key or roles.is_large) else []
    facts += ["primaryKey: true"] if roles.is_identity(field) else []
    if is_time and field.type == "timestamp":
        facts.append('logicalTypeOptions: {minimum: "1970-01-01T00:00:00Z"}')
    if field.type == "timestamp" and (field.ahead or not is_time):
        # A birthday or an expiry may be far from the event; only the event's own time is bounded by it.
        facts.append(f"customProperties: [{{property: future, value: {'366' if is_time else '36500'} days}}]")
    if field.type == "string":
        facts.append(_text_rule(field, is_key))
    if field.type == "variant":
        facts.append("customProperties: [{property: variant, value: true}]")
    return facts


def _accepted(values: Sequence[str]) -> str:
    texts = ", ".join(map(json.dumps, values))
    return f"quality: [{{type: library, metric: invalidValues, mustBe: 0, arguments: {{validValues: [{texts}]}}}}]"


def _text_rule(field: InferredField, is_key: bool) -> str:
    if field.values:
        return _accepted(field.values)
    length = f"maxLength: {longest_accepted(field)}"
    pattern = {TimeForm.local: LOCAL_TIME, TimeForm.day: DAY_TIME, **EPOCH_TEXT}.get(field.form) if is_key else None
    least = "minLength: 1, " if is_key and not pattern else ""
    return f"logicalTypeOptions: {{{least}{length}{f', pattern: {chr(39)}{pattern}{chr(39)}' if pattern else ''}}}"


def _measures(dataset: InferredDataset) -> Iterator[str]:
    yield '      records: {count: "*"}'
    for field in dataset.measured:
        yield f"      total_{field.name[:56]}: {{sum: {_key(field.name)}}}"
        yield f"      largest_{field.name[:54]}: {{max: {_key(field.name)}}}"


def _key(name: str) -> str:
    """Return a name as YAML reads it back: `on` and `null` need quotes."""
    return name if yaml.safe_load(name) == name else json.dumps(name)


def _comment(text: str) -> str:
    return " ".join(text.split())


CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: {name}
name: {name}
version: 1.0.0
status: draft
# {sample} Correct what is too strict or too loose: a record that breaks
# the contract is in `rejected`, with the reason. Keep the fields in the order of the records: it is read fastest.
{left_out}
schema:
  - name: {name}
    physicalType: topic
    logicalType: object
    properties:
{reason}
{properties}
"""

PIPELINE = """\
# What the platform does with `{name}`; what a record must look like is in contract.yaml.
topic: {topic}
partitions: 2

# {time}. Records older than the newest minus `lateness` are late; they still count.
event_time: {event_time}
lateness: 1 day
# A partition without records for so long holds nothing back that waits for late records; never: it does.
idle: 5 minutes

{same}
identity:
  columns: [{identity}]
  horizon: 3 days

gold:
  # {question}
  {table}:
    kind: additive
    window: {{column: {event_time}, size: 1 day, as: {day}}}
{keys}    measures:
{measures}
{children}"""

SAME = "# The first record of an identity wins; a later one within the horizon (event time) is a duplicate."
ALL_DIFFERENT = "# A record is known by its place in the topic alone: one that is sent twice counts twice."

CHANGES = """\
# What the platform does with `{name}`; what a row must look like is in contract.yaml.
topic: {topic}
partitions: 2

# The row is in `after`, a deleted one in `before`. `op`, `sequence` and `ts_ms` are columns too.
envelope: debezium
# The time of the change, which silver.py makes of ts_ms.
event_time: {event_time}
lateness: 1 day
# A partition without records for so long holds nothing back that waits for late records; never: it does.
idle: 5 minutes

# The key of a row, which is a guess, and what puts its changes in order.
changes: {{keys: [{keys}]{sequence}}}
# The same change, sent again within the horizon, is a duplicate.
identity:
  columns: [{identity}]
  horizon: 7 days

gold:
  # The rows as they are now; deletes delete.
  {short}_rows:
    kind: changes
    columns: {{{columns}}}
  # All versions of each row, with valid_from, valid_to and is_current.
  {short}_versions:
    kind: changes
    scd: 2
    columns: {{{columns}}}
"""

SILVER = '''\
"""`silver.{name}`: an accepted record {how}."""

from __future__ import annotations

from pyspark.sql import DataFrame
{imports}

def silver(accepted: DataFrame) -> DataFrame:
    """{does}"""
    return accepted{made}
'''

PIPELINES: Mapping[type[InferredDataset], Callable[[Any], str]] = {
    InferredDataset: _records_pipeline,
    InferredChanges: _changes_pipeline,
}

CASE, CASE_RECORDS = "sample", 20


class FolderRefused(Terminal):
    """No folder can be written under this name; nothing was written."""

    def __init__(self, name: str, why: str, remedy: str) -> None:
        super().__init__(f"dataset {name[:80]!r}: {why}; nothing was written", remedy)
        self.name, self.why = name, why


@dataclass(frozen=True)
class WrittenFolder:
    """The folder and its files."""

    folder: Path
    files: tuple[Path, ...]


def refuse_name(settings: Settings, name: str) -> None:
    """Raise FolderRefused when `name` is not a name of a dataset, or its folder exists."""
    if not NAME.fullmatch(name):
        raise FolderRefused(name, f"the name {NAME_RULE}", "headrace new another_name --from …")
    folder = settings.datasets / name
    if folder.exists():
        raise FolderRefused(name, f"{folder} exists", f"headrace try {name}   (or choose another name)")


def write_folder(settings: Settings, dataset: InferredDataset, sample: RecordSample) -> WrittenFolder:
    """Write the dataset's folder; when a file cannot be written, none is left. Raises FolderRefused."""
    refuse_name(settings, dataset.name)
    folder = settings.datasets / dataset.name
    records, expected = case_texts(dataset, sample)
    case = folder / "cases" / f"{CASE}.jsonl"
    texts: dict[Path, bytes] = {
        folder / "contract.yaml": contract_text(dataset).encode(),
        folder / "silver.py": silver_text(dataset).encode(),
        case: records,
        expected_path(case): expected.encode(),
        # Last: a folder is a dataset once it has this file.
        folder / "pipeline.yaml": pipeline_text(dataset).encode(),
    }
    try:
        case.parent.mkdir(parents=True)
        for path, text in texts.items():
            path.write_bytes(text)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        why = f"{folder}: {error.strerror}"
        raise FolderRefused(dataset.name, why, "choose a writable HEADRACE_DATASETS") from error
    return WrittenFolder(folder, tuple(texts))


def case_texts(dataset: InferredDataset, sample: RecordSample) -> tuple[bytes, str]:
    """Return a case's records and what is expected: the first of the sample, with a key one twice and one without."""
    first = sample.objects[:CASE_RECORDS]
    if not dataset.keys:
        return b"\n".join(first) + b"\n", json.dumps({"rejected": {}}) + "\n"
    keyed = (json.loads(each) for each in sample.objects)
    keyless = next(each for each in keyed if all(value_at(each, path) is not None for path in dataset.key_paths))
    for *around, member in dataset.key_paths:
        value_at(keyless, around)[member] = None
    records = [*first, first[0], json.dumps(keyless).encode()]
    missing = ["missing_id"] * len(dataset.keys)
    expected = {"rejected": {str(len(first) + 1): ["duplicate"], str(len(first) + 2): missing}}
    return b"\n".join(records) + b"\n", json.dumps(expected, indent=1) + "\n"
