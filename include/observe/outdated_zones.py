"""Published releases that keep other rules of time zones than a new release would have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from include.declare.dataset import dataset_names
from include.declare.time_zones import changed_zones
from include.ground.errors import HeadraceError
from include.ground.paths import snapshot_path
from include.ground.settings import Settings
from include.read.publication import find_publication


@dataclass(frozen=True)
class OutdatedZones:
    """A published release, its snapshot, and in words the zones of which the installed rules differ."""

    dataset: str
    release: str
    folder: Path
    changed: list[str]


def outdated_zones(settings: Settings) -> Iterator[OutdatedZones]:
    """Yield the published releases with other rules than the installed ones."""
    for dataset in dataset_names(settings):
        # `status` and `audit` report a publication that cannot be read.
        with suppress(HeadraceError):
            publication = find_publication(settings, dataset)
            if publication is None:
                continue
            folder = snapshot_path(settings, dataset, publication.release)
            if changed := changed_zones(folder):
                yield OutdatedZones(dataset, publication.release, folder, changed)
