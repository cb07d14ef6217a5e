"""A dataset's folder as one value, its content hash (the release) and its snapshot.

The cases of a dataset: `cases/NAME.jsonl` has records, `cases/NAME.expected.json` the expected results.

`rejected` names the reasons of each rejected line; `gold`, if given, the rows of each table. `headrace try` runs them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from include.declare.contract import Contract
from include.declare.contract_file import TYPES_FILE, read_contract, released_types, write_types
from include.declare.file_sets import FILE_SETS, FileSet, read_file_sets, write_file_sets
from include.declare.pipeline import (
    Pipeline,
    contract_findings,
    dataset_findings,
    pipeline_findings,
    read_pipeline,
    retention_findings,
)
from include.declare.time_zones import ZONES_FILE, write_zones
from include.declare.yaml_declarations import NAME, NAME_RULE, DeclarationRefused, Document, Problem, raise_problems
from include.ground.durable_files import unique_suffix
from include.ground.errors import Terminal
from include.ground.paths import snapshot_path
from include.ground.settings import Settings

ANALYSES = "analysis"
DERIVED = "derived.yaml"
CODE = {".yaml", ".py", ".sql"}
RELEASE_START = "beginning.yaml"
SNAPSHOT_FILES = (RELEASE_START, ZONES_FILE, TYPES_FILE, FILE_SETS)
"""What a snapshot has besides the folder: where the release begins, the time zones by which it is computed, types, and
the sets of files that it has loaded."""


class DatasetUnknown(Terminal):
    """No dataset has this name; `known` are the existing ones."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"dataset {name!r} is unknown", f"use one of: {', '.join(known) or 'none'}")
        self.name = name
        self.known = known


class ReleaseUnknown(Terminal):
    """The release has no snapshot, or no longer; `known` are the releases that have one."""

    def __init__(self, dataset: str, release: str, known: list[str]) -> None:
        super().__init__(
            f"{dataset}: release {release!r} has no snapshot", f"releases with one: {', '.join(known) or 'none'}"
        )
        self.dataset, self.release, self.known = dataset, release, known


class IsDerived(Terminal):
    """The dataset is derived: it has no topic, contract or silver. `origins`: the datasets it is derived from."""

    def __init__(self, name: str, origins: Sequence[str] = ()) -> None:
        instead, own, source = "headrace lineage", "", "what it names"
        if origins:
            source, instead = "that", f"--dataset {' or '.join(origins)} in the same command"
            own = f"; its own grains: headrace backfill run --dataset {name} --from … --to …"
        super().__init__(
            f"{name} is derived: it has no topic and no records of its own; nothing was done",
            f"{instead}   ({name} is computed from {source}, and is updated automatically){own}",
        )
        self.name = name


@dataclass(frozen=True)
class ReleaseStart:
    """Where a release begins: it inherits the batches before `batch` from release `base`, at these table versions."""

    base: str
    batch: int
    silver: int
    rejected: int


@dataclass(frozen=True)
class Dataset:
    """One kind of event: contract, pipeline, and the folder with its transformations.

    `release` names all files of a snapshot; `code` the folder alone, without SNAPSHOT_FILES.
    """

    name: str
    folder: Path
    release: str
    contract: Contract
    pipeline: Pipeline
    code: str = ""
    release_start: ReleaseStart | None = None
    file_sets: tuple[FileSet, ...] = ()
    """The sets of files whose records it has besides those of the topic."""


def dataset_names(settings: Settings) -> list[str]:
    """Return the names of the dataset folders, sorted; a folder whose name no dataset can have is left out."""
    return [name for name in _folder_names(settings) if NAME.fullmatch(name)]


def misnamed_folders(settings: Settings) -> list[Problem]:
    """Return the folders that are left out, each as a problem."""
    why = f"the folder's name {NAME_RULE}; rename the folder"
    names = sorted({*_folder_names(settings), *_derived_folders(settings)})
    foreign = [name for name in names if not NAME.fullmatch(name)]
    return [Problem(settings.datasets / name, 1, "", why) for name in foreign]


def _folder_names(settings: Settings) -> list[str]:
    """Return the folders that have a file of a dataset; an incomplete one is refused when it is read."""
    files = ("pipeline.yaml", "contract.yaml", "silver.py")
    return sorted({path.parent.name for file in files for path in settings.datasets.glob(f"*/{file}")})


def _derived_folders(settings: Settings) -> list[str]:
    return [path.parent.name for path in settings.datasets.glob(f"*/{DERIVED}")]


def load_dataset(name: str, folder: Path, *, strict: bool = True) -> Dataset:
    """Return a dataset's folder as a value; raises DeclarationRefused with all problems of its files.

    `strict` is for a folder that is being declared; without it, rules that are newer than the folder are not applied.
    """
    documents = [Document(folder / file, strict=strict) for file in ("contract.yaml", "pipeline.yaml")]
    contract, pipeline = read_contract(documents[0]), read_pipeline(documents[1])
    if pipeline is not None:
        documents[1].check(pipeline_findings(pipeline))
    if contract is not None and pipeline is not None:
        documents[0].check(contract_findings(pipeline, contract, name))
        contract = pipeline.opened(contract) if pipeline.envelope else contract
        documents[1].check(dataset_findings(pipeline, contract))
        documents[1].check(retention_findings(pipeline, contract))
    raise_problems(*documents)
    assert contract is not None
    assert pipeline is not None
    if pipeline.children:
        contract, pipeline = replace(contract, children=pipeline.children), pipeline.with_children(name, contract)
    start = load_release_start(folder)
    code = content_hash(folder, leave_out=SNAPSHOT_FILES)
    return Dataset(name, folder, content_hash(folder), contract, pipeline, code, start, read_file_sets(folder))


def load_release_start(folder: Path) -> ReleaseStart | None:
    """Return where the release of a snapshot begins; None: with bronze's first batch."""
    path = folder / RELEASE_START
    if not path.exists():
        return None
    document = Document(path)
    start = document.parsed(ReleaseStart)
    raise_problems(document)
    return start


def declared_dataset(settings: Settings, name: str) -> Dataset:
    """Return the dataset as its folder declares it now; raises DatasetUnknown, IsDerived, DeclarationRefused."""
    known = dataset_names(settings)
    if name not in known:
        if name in _derived_folders(settings):
            raise IsDerived(name)
        misnamed = [problem for problem in misnamed_folders(settings) if problem.file.name == name]
        raise DeclarationRefused(misnamed) if misnamed else DatasetUnknown(name, known)
    return load_dataset(name, settings.datasets / name)


def snapshot_dataset(
    settings: Settings, name: str, beginning: ReleaseStart | None = None, file_sets: Sequence[FileSet] = ()
) -> Dataset:
    """Copy the dataset's folder to its release's own place, once, and return it as read from there.

    The snapshot also has the rules of the time zones of its windows and the types of its columns: another `tzdata`, or
    another reading of contracts, does not change them. `file_sets`: those of the release that it is to replace.
    """
    declared = declared_dataset(settings, name)
    copy = copied_folder(settings, name, declared.folder, declared.release)
    write_zones(copy, declared.pipeline.window_zones)
    write_types(copy, declared.contract.types, released_types(copy))
    return _placed_snapshot(settings, name, copy, beginning, file_sets)


def snapshot_with_files(settings: Settings, base: Dataset, beginning: ReleaseStart | None, added: FileSet) -> Dataset:
    """Copy a release's snapshot to that of a release with one more set of files, and return it as read from there."""
    copy = snapshot_path(settings, base.name, f".{base.release}.{unique_suffix()}")
    shutil.copytree(base.folder, copy, ignore=shutil.ignore_patterns("__pycache__", RELEASE_START, FILE_SETS))
    return _placed_snapshot(settings, base.name, copy, beginning, [*base.file_sets, added])


def _placed_snapshot(
    settings: Settings, name: str, copy: Path, beginning: ReleaseStart | None, file_sets: Sequence[FileSet]
) -> Dataset:
    write_file_sets(copy, file_sets)
    if beginning is not None:
        (copy / RELEASE_START).write_text(json.dumps(asdict(beginning)), "utf-8")
    place = snapshot_path(settings, name, load_dataset(name, copy, strict=False).release)
    if place.is_dir():
        # Reference files are not code: a corrected one is copied into the release that it belongs to.
        if (copy / "reference").is_dir():
            shutil.copytree(copy / "reference", place / "reference", dirs_exist_ok=True)
        shutil.rmtree(copy)
    else:
        copy.rename(place)
    return load_dataset(name, place, strict=False)


def copied_folder(settings: Settings, name: str, folder: Path, release: str) -> Path:
    """Copy a dataset's folder next to its snapshots; return the copy, which is to be renamed."""
    copy = snapshot_path(settings, name, f".{release}.{unique_suffix()}")
    shutil.rmtree(copy, ignore_errors=True)
    return shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__", *SNAPSHOT_FILES))


def released_dataset(settings: Settings, name: str, release: str) -> Dataset:
    """Return the dataset as the snapshot of `release` says.

    Raises ReleaseUnknown, IsDerived, and DeclarationRefused when it was changed.
    """
    folder = released_folder(settings, name, release)
    if (folder / DERIVED).is_file():
        raise IsDerived(name)
    dataset = load_dataset(name, folder, strict=False)
    refuse_changed(folder, dataset.release, release)
    return dataset


def released_folder(settings: Settings, name: str, release: str) -> Path:
    """Return the folder of a release's snapshot. Raises ReleaseUnknown."""
    folder = snapshot_path(settings, name, release)
    if not folder.is_dir():
        raise ReleaseUnknown(name, release, sorted(path.name for path in folder.parent.glob("[!.]*")))
    return folder


def refuse_changed(folder: Path, found: str, release: str) -> None:
    """Raise DeclarationRefused when a snapshot's content hash is not the release that it is named after."""
    if found != release:
        why = f"the snapshot was changed: its content hash is {found}, not {release}"
        raise DeclarationRefused([Problem(folder, 1, "", why)])


def code_hash(settings: Settings, name: str, release: str) -> str:
    """Return the hash of the folder that a release was copied from, whatever its start."""
    place = snapshot_path(settings, name, release)
    return content_hash(place, leave_out=SNAPSHOT_FILES) if place.is_dir() else release


def content_hash(folder: Path, leave_out: Sequence[str] = ()) -> str:
    """Return the first 12 hex digits of the SHA-256 over the folder's code files, names and bytes."""
    digest = hashlib.sha256()
    found = (
        path for path in folder.rglob("*") if path.suffix in CODE and path.name not in leave_out and path.is_file()
    )
    # An analysis reads what is published; it is not part of the release.
    for path in sorted(path for path in found if not {"__pycache__", ANALYSES} & set(path.parts[len(folder.parts) :])):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:12]


class ExpectedCase(BaseModel):
    """The expected results of a case: reasons by line, rows by gold table."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rejected: dict[str, list[str]] = {}
    gold: dict[str, list[dict[str, Any]]] | None = None

    def differences(self, rejected: Mapping[str, Sequence[str]], gold: Mapping[str, Sequence[Any]]) -> list[str]:
        lines = sorted({*self.rejected, *rejected}, key=lambda line: (len(line), line))
        found = [
            f"line {line}: expected {_verdict(self.rejected.get(line))}, is {_verdict(rejected.get(line))}"
            for line in lines
            if sorted(self.rejected.get(line, ())) != sorted(rejected.get(line, ()))
        ]
        for table, rows in (self.gold or {}).items():
            if list(gold.get(table, ())) != rows:
                found.append(f"{table}: expected {_shown(rows)}, is {_shown(gold.get(table, ()))}")
        return found


def expected_path(case: Path) -> Path:
    """Return the file of a case's expected results."""
    return case.with_suffix(".expected.json")


def expected_case(case: Path) -> ExpectedCase | None:
    """Return a case's expected results, None without a file. Raises Terminal."""
    path = expected_path(case)
    try:
        return ExpectedCase.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.strerror
        remedy = "headrace try DATASET --accept   (stores the current results as expected)"
        raise Terminal(f"{path}: {first}", remedy, code="case-unreadable") from error


def case_text(rejected: Mapping[str, Sequence[str]], gold: Mapping[str, Sequence[Any]]) -> str:
    """Return the text of an expectation."""
    return json.dumps({"rejected": rejected, "gold": gold}, indent=1, ensure_ascii=False) + "\n"


def _verdict(reasons: Sequence[str] | None) -> str:
    return ", ".join(reasons) if reasons else "accepted"


def _shown(rows: Sequence[Any]) -> str:
    return f"{len(rows)} rows {json.dumps(rows, ensure_ascii=False)[:200]}"
