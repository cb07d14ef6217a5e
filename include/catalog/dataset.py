"""A dataset's folder as one value, its content hash (the release) and its snapshot."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from include.catalog.contract import Contract, load_contract
from include.catalog.pipeline import Pipeline, load_pipeline
from include.catalog.reading_yaml import DeclarationRefused
from include.errors import Terminal
from include.places import snapshot_path
from include.settings import Settings

CODE = {".yaml", ".py", ".sql"}


class DatasetUnknown(Terminal):
    """There is no such dataset; `known` are those that are."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"dataset {name!r} is unknown", f"use one of: {', '.join(known)}")
        self.name = name
        self.known = known


@dataclass(frozen=True)
class Dataset:
    """One kind of event: contract, pipeline, and the folder with its transformations."""

    name: str
    folder: Path
    release: str
    contract: Contract
    pipeline: Pipeline


def dataset_names(settings: Settings) -> list[str]:
    """Return the names of the dataset folders, sorted."""
    return sorted(path.parent.name for path in settings.datasets.glob("*/pipeline.yaml"))


def load_dataset(name: str, folder: Path) -> Dataset:
    """Read a dataset's folder, strictly; DeclarationRefused names what is wrong."""
    contract, pipeline = load_contract(folder), load_pipeline(folder)
    columns = {column.name for column in contract.columns}
    for column in (pipeline.event_time, *pipeline.identity):
        if column not in columns:
            raise DeclarationRefused(f"{folder}/pipeline.yaml: {column}", "is no column of the contract")
    if contract.identity != pipeline.identity:
        raise DeclarationRefused(f"{folder}/contract.yaml: primaryKey", f"is not {list(pipeline.identity)}")
    return Dataset(name, folder, content_hash(folder), contract, pipeline)


def declared_dataset(settings: Settings, name: str) -> Dataset:
    """Return the dataset as its folder says now; DatasetUnknown lists the known ones."""
    known = dataset_names(settings)
    if name not in known:
        raise DatasetUnknown(name, known)
    return load_dataset(name, settings.datasets / name)


def snapshot_dataset(settings: Settings, name: str) -> Dataset:
    """Copy the dataset's folder to its release's own place, once, and return it as read from there."""
    declared = declared_dataset(settings, name)
    place = snapshot_path(settings, name, declared.release)
    if not place.is_dir():
        copy = place.with_name(f".{declared.release}.{os.getpid()}")
        shutil.copytree(declared.folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
        copy.rename(place)
    return load_dataset(name, place)


def released_dataset(settings: Settings, name: str, release: str) -> Dataset:
    """Return the dataset as the snapshot of `release` says; Terminal when the snapshot is gone or was changed."""
    place = snapshot_path(settings, name, release)
    dataset = load_dataset(name, place)
    if dataset.release != release:
        raise DeclarationRefused(str(place), f"was changed: its content hash is {dataset.release}, not {release}")
    return dataset


def content_hash(folder: Path) -> str:
    """Return the first 12 hex digits of the SHA-256 over the folder's code files, names and bytes."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in CODE and "__pycache__" not in p.parts):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:12]
