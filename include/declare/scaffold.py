"""The texts of a new dataset's files. Users read and correct them, so each guess has a comment."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from include.declare.dataset import expected_path
from include.declare.inferred_changes import InferredChanges
from include.declare.inferred_dataset import (
    KAFKA_TIME,
    LARGE_SAMPLE,
    InferredDataset,
    InferredField,
    TimeForm,
    value_at,
)
from include.declare.portable_regex import DEFAULT_STRING_BYTES
from include.declare.sample_records import RecordSample
from include.declare.sql_checks import is_column
from include.declare.yaml_declarations import NAME, NAME_RULE
from include.ground.errors import Terminal
from include.ground.render_template import render_text
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
    guess = f"The primary key ({', '.join(dataset.identity)}) is a guess"
    properties = [property_text(field, "      ", roles) for field in dataset.fields]
    key = guess if dataset.keys else "There is no primary key"
    return _text("contract.yaml", dataset, properties=properties, primary_key=key)


def pipeline_text(dataset: InferredDataset) -> str:
    """Return pipeline.yaml."""
    if isinstance(dataset, InferredChanges):
        columns = ", ".join(f"{_key(name)}: {_expression(name)}" for name in dataset.kept)
        return _text("changes.yaml", dataset, columns=f"{{{columns}}}")
    converted = f", which silver.py makes of {dataset.time.name}" if dataset.event_time != dataset.time.name else ""
    own = "The time at which Kafka got the record" if dataset.time is KAFKA_TIME else "The record's own time"
    return _text(
        "pipeline.yaml",
        dataset,
        time=f"{own}{converted}",
        gold=f"{dataset.name[:58]}_days",
        day="day" if all(field.name != "day" for field in dataset.fields) else "event_day",
        arrays=[each.name for each in dataset.fields if each.type == "array" and each.fields[0].type == "object"],
    )


def silver_text(dataset: InferredDataset) -> str:
    """Return silver.py."""
    time = dataset.time
    made = "" if dataset.event_time == time.name else CONVERSIONS[time.form].format(name=time.name)
    zone = ", read as UTC unless it has a zone" if time.form in (TimeForm.local, TimeForm.day) else ""
    return _text("silver.py", dataset, made=made, zone=zone)


def _text(file: str, dataset: InferredDataset, **values: object) -> str:
    return render_text(
        f"dataset/{file}.j2",
        **values,
        dataset=dataset,
        key=_key,
        expression=_expression,
        keys=lambda names: ", ".join(map(_key, names)),
        quoted=json.dumps,
        comment=_comment,
    )


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
    # Generous: the sample may lack the longest.
    length = f"maxLength: {min(DEFAULT_STRING_BYTES, max(256, 4 * field.longest))}"
    pattern = {TimeForm.local: LOCAL_TIME, TimeForm.day: DAY_TIME, **EPOCH_TEXT}.get(field.form) if is_key else None
    least = "minLength: 1, " if is_key and not pattern else ""
    return f"logicalTypeOptions: {{{least}{length}{f', pattern: {chr(39)}{pattern}{chr(39)}' if pattern else ''}}}"


def _key(name: str) -> str:
    """Return a name as YAML reads it back: `on` and `null` need quotes."""
    return name if yaml.safe_load(name) == name else json.dumps(name)


def _expression(name: str) -> str:
    """Return a column as an SQL expression in YAML."""
    return _key(name) if is_column(name) else json.dumps(f"`{name}`")


def _comment(text: str) -> str:
    return " ".join(text.split())


CASE, CASE_RECORDS = "sample", 20


def _refused(name: str, why: str, remedy: str) -> Terminal:
    what = f"dataset {name[:80]!r}: {why}; nothing was written"
    return Terminal(what, remedy, code="folder-refused", dataset=name, why=why)


def refuse_name(settings: Settings, name: str) -> None:
    """Raise Terminal (folder-refused) when `name` is not a name of a dataset, or its folder exists."""
    if not NAME.fullmatch(name):
        raise _refused(name, f"the name {NAME_RULE}", "headrace new another_name --from …")
    folder = settings.datasets / name
    if folder.exists():
        raise _refused(name, f"{folder} exists", f"headrace try {name}   (or choose another name)")


def write_folder(settings: Settings, dataset: InferredDataset, sample: RecordSample) -> Path:
    """Write the dataset's folder and return it; when a file cannot be written, none is left.

    Raises Terminal (folder-refused).
    """
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
        raise _refused(dataset.name, why, "choose a writable HEADRACE_DATASETS") from error
    return folder


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
