"""Which version of each analysis readers see: one file per dataset, replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from include.ground.durable_files import write_atomically
from include.ground.paths import analyses_path, analysis_table_path
from include.ground.settings import Settings


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
