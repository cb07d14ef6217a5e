"""Writes the folder of a new dataset, with a case: records and their expected results."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from include.declare.dataset_cases import expected_path
from include.declare.folder_texts import contract_text, pipeline_text, silver_text
from include.declare.inferred_dataset import InferredDataset
from include.declare.sample_records import RecordSample
from include.declare.yaml_declarations import NAME, NAME_RULE
from include.ground.errors import Terminal
from include.ground.settings import Settings

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
    """Return a case's records and what is expected: the first of the sample, one of them twice, one without its key."""
    first = sample.objects[:CASE_RECORDS]
    keyless = json.loads(first[0]) | dict.fromkeys(dataset.key_members)
    records = [*first, first[0], json.dumps(keyless).encode()]
    missing = ["missing_id"] * len(dataset.identity)
    expected = {"rejected": {str(len(first) + 1): ["duplicate"], str(len(first) + 2): missing}}
    return b"\n".join(records) + b"\n", json.dumps(expected, indent=1) + "\n"
