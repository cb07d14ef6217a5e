"""The publication of a dataset: which release and which table versions readers see. One file, replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from include.ground.app_ids import require_ownership
from include.ground.durable_files import discard_unfinished, write_atomically
from include.ground.errors import Terminal
from include.ground.paths import (
    analyses_path,
    analysis_table_path,
    local_warehouse,
    publication_path,
    shadow_publication_path,
    warehouse,
)
from include.ground.settings import Settings
from include.read.publish_to_store import publish_to_store


@dataclass(frozen=True)
class PublishedAnalysis:
    """A published result: version of its table, number of its run, hash of its declaration, and what it was read from.

    `sources` has release and version of each table by name; `figures` are the algorithm's measures of the result.
    """

    name: str
    version: int
    run: int
    code: str
    sources: Mapping[str, tuple[str, int]]
    figures: Mapping[str, float]


def published_analyses(settings: Settings, dataset: str) -> dict[str, PublishedAnalysis]:
    """Return the published analyses of a dataset by name."""
    try:
        found = json.loads(_file(settings, dataset).read_bytes())
    except FileNotFoundError:
        return {}
    analyses = (PublishedAnalysis(**each) for each in found)
    return {each.name: replace(each, sources={k: (v[0], v[1]) for k, v in each.sources.items()}) for each in analyses}


def publish_analysis(settings: Settings, dataset: str, analysis: PublishedAnalysis) -> None:
    """Move an analysis to a version, atomically and durably; the caller holds the lock of the dataset's analyses."""
    known = published_analyses(settings, dataset) | {analysis.name: analysis}
    text = json.dumps([asdict(each) for each in known.values()], indent=1)
    write_atomically(_file(settings, dataset), text + "\n")


def analysis_tables(settings: Settings) -> dict[str, tuple[str, Path, PublishedAnalysis]]:
    """Return dataset, path and publication of each published analysis by its table's name, `analysis.<name>`."""
    found = {}
    for file in sorted((settings.state / "analyses").glob("*/published.json")):
        dataset = file.parent.name
        for name, each in published_analyses(settings, dataset).items():
            found[f"analysis.{name}"] = (dataset, analysis_table_path(settings, dataset, name), each)
    return found


def _file(settings: Settings, dataset: str) -> Path:
    return analyses_path(settings, dataset) / "published.json"


class NothingPublished(Terminal):
    """The dataset has no publication yet, so there is nothing to read."""

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"nothing of dataset {dataset!r} is published yet; nothing was read",
            f"headrace up {dataset} && headrace wait --caught-up   (its topic, or its sources, must have records)",
        )
        self.dataset = dataset


class PublicationUnreadable(Terminal):
    """The publication file is invalid; it is only replaced atomically, so it was edited."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path}: {why}; nothing was read and the tables are untouched",
            f'headrace down, rm "{path}", headrace up   (publishes the last batch of the same release again)',
        )
        self.path = path


class PublicationAhead(Terminal):
    """A later batch of the same release is published already: the process that published it owns the tables now."""

    def __init__(self, dataset: str, published: int, batch: int) -> None:
        super().__init__(
            f"{dataset}: batch {published} is already published, batch {batch} was not published; "
            "another process owns these tables now",
            "headrace status",
        )
        self.dataset, self.published, self.batch = dataset, published, batch


@dataclass(frozen=True)
class TableVersion:
    """One version of one Delta table; `path` is relative to the warehouse.

    `batch`: the last batch that it has, of a gold table that is behind the publication by its `refresh`; else None.
    """

    path: str
    version: int
    batch: int | None = None


@dataclass(frozen=True)
class SourceVersion:
    """A published table as a derived dataset has used it; `path` is relative to the warehouse.

    `commit` is the SHA-256 of the version's commit: after a power cut another commit may get the same version.
    """

    path: str
    version: int
    release: str
    batch: int
    commit: str


@dataclass(frozen=True)
class Publication:
    """What readers see of a dataset.

    All tables together hold exactly the batches up to `batch` (inclusive), or their own one, that is the records below
    `offsets[partition]` (exclusive end offsets of Kafka). `tables` is keyed by full name: `silver.flights`. Of a
    derived dataset `batch` is the number of its last run, and `sources` has the tables that it used, by full name.
    """

    dataset: str
    release: str
    batch: int
    published_at: datetime
    offsets: Mapping[int, int]
    tables: Mapping[str, TableVersion]
    sources: Mapping[str, SourceVersion] = field(default_factory=dict)

    @property
    def is_derived(self) -> bool:
        """Whether it is of a derived dataset, which has no topic."""
        return bool(self.sources)


@dataclass(frozen=True)
class PublishedTable:
    """A table as one publication pins it; `path` is absolute."""

    name: str
    path: Path
    version: int
    dataset: str
    release: str
    batch: int


def find_publication(settings: Settings, dataset: str) -> Publication | None:
    """Return the dataset's publication, None without one; PublicationUnreadable when the file is not one."""
    return _read_file(publication_path(settings, dataset))


def find_shadow_publication(settings: Settings, dataset: str, release: str) -> Publication | None:
    """Return what a derived dataset's unpublished release would publish; None when it has no tables yet."""
    return _read_file(shadow_publication_path(settings, dataset, release))


def save_shadow_publication(settings: Settings, publication: Publication) -> None:
    """Keep what a release would publish, for a later promotion."""
    path = shadow_publication_path(settings, publication.dataset, publication.release)
    write_atomically(path, json.dumps(publication_json(publication), indent=1) + "\n")


def _read_file(path: Path) -> Publication | None:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    try:
        return publication_from_json(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PublicationUnreadable(path, f"is not a publication ({type(error).__name__}: {error})") from error


def read_publication(settings: Settings, dataset: str) -> Publication:
    """Return the dataset's publication; NothingPublished when there is none."""
    found = find_publication(settings, dataset)
    if found is None:
        raise NothingPublished(dataset)
    return found


def publications(settings: Settings) -> dict[str, Publication]:
    """Return the publication of every dataset that has one, by dataset name."""
    names = sorted(path.parent.name for path in local_warehouse(settings).glob("*/publication.json"))
    found = {name: find_publication(settings, name) for name in names}
    return {name: publication for name, publication in found.items() if publication is not None}


def stream_publications(settings: Settings) -> dict[str, Publication]:
    """Return the publications of the datasets that have a topic."""
    return {name: found for name, found in publications(settings).items() if not found.is_derived}


def published_tables(settings: Settings) -> dict[str, PublishedTable]:
    """Return every published table of all datasets by full name, each dataset's from one read of its publication.

    Analyses come after the tables that they may be of; their release is their code, their batch the number of the run.
    """
    found = {
        table.name: table
        for publication in publications(settings).values()
        for table in tables_of(settings, publication).values()
    }
    for name, (dataset, path, each) in analysis_tables(settings).items():
        found[name] = PublishedTable(name, path, each.version, dataset, each.code, each.run)
    return found


def tables_of(settings: Settings, publication: Publication) -> dict[str, PublishedTable]:
    """Return the tables that one publication pins, by full name."""
    p, root = publication, warehouse(settings)
    batches = {name: p.batch if table.batch is None else table.batch for name, table in p.tables.items()}
    return {
        name: PublishedTable(name, root / table.path, table.version, p.dataset, p.release, batches[name])
        for name, table in p.tables.items()
    }


def batches_behind(publication: Publication) -> dict[str, int]:
    """Return the last batch of each table that its refresh leaves behind the publication."""
    return {name: table.batch for name, table in publication.tables.items() if table.batch is not None}


def publish(settings: Settings, publication: Publication) -> None:
    """Move the dataset's publication, atomically and durably; with HEADRACE_WAREHOUSE first in the object store.

    Guarantee: a reader sees the complete old or new publication; after return the new one survives a power cut, and
    with a store the loss of this host. StoreUnavailable, StoreConflict: the old one stays, here and in the store.
    Only the owner of the dataset's tables may call this; PublicationAhead refuses a suspended former owner.
    After a crash: call it again, the same is written.
    """
    current = find_publication(settings, publication.dataset)
    if current is not None and current.release == publication.release and current.batch > publication.batch:
        raise PublicationAhead(publication.dataset, current.batch, publication.batch)
    replace_publication(settings, publication)


def replace_publication(settings: Settings, publication: Publication) -> None:
    """Publish as `publish` does, also an earlier batch: only for tables that have lost the published one."""
    content, path = publication_json(publication), publication_path(settings, publication.dataset)
    if settings.warehouse:
        publish_to_store(settings, publication.dataset, content)
    write_atomically(path, json.dumps(content, indent=1) + "\n", before_replacing=require_ownership)


def fence_publication(settings: Settings, dataset: str) -> None:
    """Have an earlier owner fail that checked its lease and has not put its publication in place yet."""
    discard_unfinished(publication_path(settings, dataset))


def publication_json(publication: Publication) -> dict[str, Any]:
    """Return a publication as its file has it."""
    at = publication.published_at.astimezone(UTC)
    sources = {name: asdict(source) for name, source in publication.sources.items()}
    return {
        "dataset": publication.dataset,
        "release": publication.release,
        "batch": publication.batch,
        "published_at": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "offsets": {str(partition): end for partition, end in sorted(publication.offsets.items())},
        "tables": {name: _without_nulls(asdict(table)) for name, table in publication.tables.items()},
        **({"sources": sources} if sources else {}),
    }


def _without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def publication_from_json(data: Mapping[str, Any]) -> Publication:
    """Return the publication that `publication_json` wrote; ValueError, KeyError or TypeError when it is none."""
    return Publication(
        dataset=str(data["dataset"]),
        release=str(data["release"]),
        batch=int(data["batch"]),
        published_at=datetime.fromisoformat(data["published_at"]),
        offsets={int(partition): int(end) for partition, end in data["offsets"].items()},
        tables={
            name: TableVersion(str(t["path"]), int(t["version"]), t.get("batch")) for name, t in data["tables"].items()
        },
        sources={name: SourceVersion(**source) for name, source in data.get("sources", {}).items()},
    )
