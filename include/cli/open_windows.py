"""What tables with `on_close` get when the watermark has moved on: rows that are not missing, only not yet there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from include.audit.origin import OpenRows, open_rows
from include.declare.dataset import released_dataset
from include.declare.event_times import utc_text
from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.observe.ledger_reader import open_reader
from include.observe.watermark import WatermarkStatus, watermark_status
from include.read.publication import Publication, find_publication
from include.read.published_tables import pinned


def open_tables(settings: Settings, publication: Publication, found: WatermarkStatus) -> dict[str, OpenRows]:
    """Return by full name what each table with `on_close` does not have yet."""
    gold = released_dataset(settings, publication.dataset, publication.release).pipeline.gold
    reading = pinned(settings)
    return {
        f"gold.{each.name}": open_rows(reading, publication.dataset, each, found.watermark)
        for each in gold
        if each.closes and f"gold.{each.name}" in publication.tables
    }


def open_windows(
    settings: Settings, dataset: str, behind: Mapping[int, int] | None = None
) -> tuple[dict[str, OpenRows], list[str]]:
    """Return what tables will get later, and the same in sentences with the partition that holds the watermark.

    `behind`: offsets by partition that are not published, None when they are not known.
    """
    publication = find_publication(settings, dataset)
    found = watermark_status(settings, publication, open_reader(settings), behind, {}) if publication else None
    if publication is None or found is None or not found.waits:
        return {}, []
    tables = open_tables(settings, publication, found)
    return tables, list(_sentences(tables, found))


def open_sentences(settings: Settings, dataset: str) -> list[str]:
    """Return in sentences what tables of a dataset that is caught up will get later, or why it is not known."""
    try:
        return open_windows(settings, dataset, {})[1]
    except HeadraceError as error:
        return [f"{dataset}: what tables with on_close wait for is not known: {error.what}"]


def _sentences(tables: Mapping[str, OpenRows], found: WatermarkStatus) -> Iterator[str]:
    for name, each in tables.items():
        first = f"; the first when the watermark reaches {utc_text(each.closes)}" if each.closes else ""
        if each.rows is None:
            yield f"{name}: how many rows are not closed yet is not known, since DuckDB cannot evaluate its declaration"
        elif each.rows:
            yield f"{name}: {each.rows:,} rows are not closed yet and appear later{first}"
    if found.holder is not None and any(each.rows != 0 for each in tables.values()):
        yield found.holder.sentence
