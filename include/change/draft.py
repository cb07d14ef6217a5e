"""A draft of a release: the dataset's folder with the fields that its newest records have and its contract does not.

The draft is a folder of its own, which commands read with HEADRACE_DATASETS; the dataset's folder stays as it is. Its
contract keeps its comments: the new properties are lines of text behind the last property of their object.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

from include.change.drift import ELEMENTS, UnknownField, newest_payloads, unknown_fields
from include.declare.contract import Contract, contract_changes, joined_path, member_path, required_version
from include.declare.dataset import Dataset, declared_dataset, released_dataset
from include.declare.envelopes import row_path
from include.declare.inferred_dataset import InferredField, column_name, inferred_fields, value_at
from include.declare.sample_records import MOST_RECORDS, RecordSample, record_sample
from include.declare.scaffold import property_text
from include.declare.writer_schemas import known_schemas
from include.ground.errors import Refused
from include.ground.paths import draft_path
from include.ground.settings import Settings
from include.read.publication import read_publication, tables_of
from include.read.published_tables import PinnedTables

RECENT_BATCHES = 100
"""By default the fields of so many batches are looked for."""


@dataclass(frozen=True)
class Draft:
    """The folder of a draft, the sample that it was made from, and what it adds; `left_out` says why by field."""

    dataset: str
    folder: Path
    sample: Path
    since_batch: int
    fields: Mapping[str, UnknownField]
    """By the path in the contract."""
    left_out: Mapping[str, str]
    version: str

    @property
    def datasets(self) -> Path:
        """The folder that HEADRACE_DATASETS names to read the draft."""
        return self.folder.parent


def draft_release(
    settings: Settings, dataset: str, since_batch: int | None, now: datetime, *, replaces: bool
) -> Draft | None:
    """Write a draft; None when the records since a batch have no field that the folder's contract lacks.

    Raises Refused when there is a draft and this one does not replace it; DeclarationRefused, SampleUnusable.
    """
    root, declared = draft_path(settings, dataset), declared_dataset(settings, dataset)
    publication = read_publication(settings, dataset)
    since = max(0, publication.batch - RECENT_BATCHES + 1) if since_batch is None else since_batch
    reading, schemas = PinnedTables(tables_of(settings, publication)), known_schemas(settings, dataset)
    unknown = unknown_fields(reading, declared.contract, since, schemas)
    if not unknown:
        return None
    if root.exists() and not replaces:
        what = f"{dataset}: a draft is there already, {root}; nothing was written"
        raise Refused(what, f"headrace release draft --dataset {dataset} --replace", code="draft-exists", folder=root)
    payloads = newest_payloads(reading, declared.contract, since, schemas, MOST_RECORDS)
    sample = record_sample(f"bronze.{dataset} since batch {since}", payloads)
    inferred, left_out = _inferred(unknown, sample, _known(declared.contract), now)
    folder = _written(root, declared, inferred)
    (root / "sample.jsonl").write_bytes(b"".join(b" ".join(each.splitlines()) + b"\n" for each in payloads))
    base = released_dataset(settings, dataset, publication.release).contract
    fresh = declared_dataset(settings.model_copy(update={"datasets": folder.parent}), dataset).contract
    version = required_version(base, contract_changes(base, fresh)) or fresh.version
    (folder / "contract.yaml").write_text(with_version((folder / "contract.yaml").read_text("utf-8"), version), "utf-8")
    drafted = {joined_path(field.path): found for field, found in inferred}
    return Draft(dataset, folder, root / "sample.jsonl", since, drafted, left_out, version)


def _known(contract: Contract) -> dict[str, str]:
    """Return the fields that the contract reads, by their paths in lower case."""
    paths = (joined_path(column.path) for column in contract.plain_columns)
    return {path.lower(): path for path in paths}


def _inferred(
    unknown: Sequence[UnknownField], sample: RecordSample, known: Mapping[str, str], now: datetime
) -> tuple[list[tuple[InferredField, UnknownField]], dict[str, str]]:
    """Return each unknown field with its type, which no record must have; and why others are left out."""
    found, left_out = list[tuple[InferredField, UnknownField]](), dict[str, str]()
    for each in unknown:
        if other := known.get(joined_path(each.path).lower()):
            left_out[joined_path(each.path)] = f"differs from {other} by case alone"
            continue
        if any(member.endswith(ELEMENTS) for member in each.path):
            left_out[joined_path(each.path)] = "is in elements of an array: add it to their items"
            continue
        *around, member = each.path
        objects = [inner for record in sample.fields if isinstance(inner := value_at(record, around), dict)]
        values = [{member: inner[member]} for inner in objects if member in inner]
        outer = InferredField("", tuple(around), "object", False, 0)
        fields, missing = inferred_fields(values, now, outer if around else None)
        found += [(_lenient(field), each) for field in fields]
        left_out |= missing
        if not values:
            left_out[joined_path(each.path)] = f"is in none of the newest {sample.records:,} records"
    return found, left_out


def _lenient(field: InferredField) -> InferredField:
    """Return a field that no record must have, with any values: what is new says little about what will come."""
    inside = tuple(map(_lenient, field.fields))
    return replace(field, required=False, always=False, values=(), seen=field.values or field.seen, fields=inside)


def _written(root: Path, declared: Dataset, inferred: Sequence[tuple[InferredField, UnknownField]]) -> Path:
    """Copy a dataset's folder into the draft's, with the fields in its contract; return the copy."""
    folder, row = root / "datasets" / declared.name, row_path(declared.contract)
    names = {column.name for column in declared.contract.columns}
    # Before anything is removed: it may be refused.
    contract = with_fields((declared.folder / "contract.yaml").read_text("utf-8"), inferred, row, names)
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(declared.folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "contract.yaml").write_text(contract, "utf-8")
    return folder


def with_fields(
    contract: str,
    fields: Sequence[tuple[InferredField, UnknownField]],
    row: Sequence[str] = (),
    taken: Collection[str] = (),
) -> str:
    """Return the text of a contract, which describes what is at `row` in a record, with a property for each field.

    It is in the innermost object that has the field, and has none of the names that are `taken`. Raises Refused.
    """
    properties = _value(_value(_root(contract), "schema").value[0], "properties")
    lines, added = contract.splitlines(), dict[int, list[tuple[int, str]]]()
    names = defaultdict[int, set[str]](set, {id(properties): {*taken}})
    for field, found in fields:
        home, path = _home(properties, field.path[len(row) :])
        if home.flow_style:
            what = f"the properties around {joined_path(field.path)} are written on one line; nothing was drafted"
            raise Refused(what, "write them in contract.yaml one below the other", code="draft-impossible")
        indent = " " * lines[home.value[-1].start_mark.line].index("-")
        own = replace(field, name=_free_name(home, path, names[id(home)]), around=len(field.path) - len(path))
        names[id(home)].add(own.name)
        seen = f"{indent}# in {found.rows:,} records, the first is batch/partition/offset {found.first}"
        text = f"{seen}\n{property_text(own, indent)}"
        added.setdefault(_last_line(home.value[-1]), []).append((len(indent), text))
    return "\n".join(_with_lines(lines, added)) + "\n"


def with_version(contract: str, version: str) -> str:
    """Return the text of a contract with another version."""
    place = _value(_root(contract), "version")
    return contract[: place.start_mark.index] + version + contract[place.end_mark.index :]


def _root(text: str) -> Any:
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _value(node: Any, key: str) -> Any:
    """Return the node of a key's value; None without it."""
    return next((value for name, value in node.value if name.value == key), None)


def _members(item: Any) -> tuple[str, ...]:
    """Return the path of a property in the object that it is declared in."""
    return member_path((_value(item, "physicalName") or _value(item, "name")).value)


def _home(properties: Any, path: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """Return the properties of the innermost declared object around a path, and the rest of the path there."""
    for item in properties.value:
        inner, own = _value(item, "properties"), _members(item)
        if inner is not None and len(path) > len(own) and tuple(path[: len(own)]) == own:
            return _home(inner, path[len(own) :])
    return properties, path


def _free_name(properties: Any, path: Sequence[str], others: Collection[str]) -> str:
    taken = {_value(item, "name").value for item in properties.value} | {*others}
    names = [column_name(path[-1]), "_".join(map(column_name, path))[:63]]
    numbered = (f"{names[0][:60]}_{number}" for number in range(2, 100))
    return next(name for name in (*names, *numbered) if name not in taken)


def _last_line(node: Any) -> int:
    """Return the last line of a node; the end of a block is where the next one begins, past comments."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.line)
    last = node.value[-1]
    return _last_line(last[1] if isinstance(last, tuple) else last)


def _with_lines(lines: Sequence[str], added: Mapping[int, Sequence[tuple[int, str]]]) -> Iterator[str]:
    """Yield the lines, behind each what is added there by its indent: an object that ends there may be in another."""
    for number, line in enumerate(lines):
        yield line
        yield from (text for _, text in sorted(added.get(number, ()), key=itemgetter(0), reverse=True))
