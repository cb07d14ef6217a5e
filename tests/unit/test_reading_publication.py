"""The publication file: it is read back as written, and a damaged file is named."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.declare.dataset import ReleaseUnknown, released_dataset, snapshot_dataset
from include.ground.paths import publication_path
from include.ground.settings import Settings
from include.read.publication import (
    NothingPublished,
    Publication,
    PublicationAhead,
    PublicationUnreadable,
    TableVersion,
    find_publication,
    publish,
    published_tables,
    read_publication,
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "a state")


def flights(batch: int) -> Publication:
    at = datetime(2026, 11, 21, 23, 0, 0, 123456, tzinfo=UTC)
    tables = {
        "bronze.flights": TableVersion("flights/bronze", batch + 1),
        "gold.carrier_hours": TableVersion("flights/ab12/gold/carrier_hours", batch + 1),
    }
    return Publication("flights", "ab12", batch, at, {0: 501_000, 1: 500_615}, tables)


def test_publication_is_read_back(settings: Settings) -> None:
    publish(settings, flights(12))
    assert read_publication(settings, "flights") == flights(12)


def test_later_publication_replaces_the_file_and_leaves_no_other(settings: Settings) -> None:
    publish(settings, flights(12))
    publish(settings, flights(13))
    assert read_publication(settings, "flights").batch == 13
    assert [path.name for path in publication_path(settings, "flights").parent.iterdir()] == ["publication.json"]


def test_owner_that_slept_cannot_move_the_publication_back(settings: Settings) -> None:
    publish(settings, flights(13))
    with pytest.raises(PublicationAhead, match="batch 13 is already published, batch 12 was not") as refused:
        publish(settings, flights(12))
    assert (refused.value.published, refused.value.batch) == (13, 12)
    assert read_publication(settings, "flights") == flights(13)
    publish(settings, flights(13))
    other = replace(flights(12), release="cd34")
    publish(settings, other)
    assert read_publication(settings, "flights") == other, "another release may be at an earlier batch"


def test_missing_publication_is_none_or_an_error_with_the_next_command(settings: Settings) -> None:
    assert find_publication(settings, "flights") is None
    with pytest.raises(NothingPublished) as refused:
        read_publication(settings, "flights")
    assert refused.value.dataset == "flights"
    assert "headrace up" in refused.value.remedy


@pytest.mark.parametrize("text", ["", "{", "[]", '{"dataset": "flights"}', '{"dataset": "f", "tables": {"t": 1}}'])
def test_damaged_publication_is_named(settings: Settings, text: str) -> None:
    path = publication_path(settings, "flights")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(PublicationUnreadable) as refused:
        read_publication(settings, "flights")
    assert refused.value.path == path


def test_published_tables_have_absolute_paths_and_their_publication(settings: Settings) -> None:
    publish(settings, flights(12))
    table = published_tables(settings)["gold.carrier_hours"]
    assert table.path == settings.state / "warehouse/flights/ab12/gold/carrier_hours"
    assert (table.version, table.dataset, table.release, table.batch) == (13, "flights", "ab12", 12)


def test_remedy_for_a_missing_publication_names_the_dataset(settings: Settings) -> None:
    """`headrace up` of an unknown dataset lists the known ones."""
    with pytest.raises(NothingPublished, match="headrace up nope && headrace wait") as refused:
        read_publication(settings, "nope")
    assert "produce" not in refused.value.remedy, "only a feed has the name of its dataset"


def test_unknown_release_lists_the_known_ones(settings: Settings) -> None:
    release = snapshot_dataset(settings, "flights").release
    with pytest.raises(ReleaseUnknown) as refused:
        released_dataset(settings, "flights", "nope")
    assert refused.value.known == [release]
    assert release in refused.value.remedy
