"""Silver may expire only what no later record can be compared with; otherwise the declaration is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from include.declare.contract import Contract
from include.declare.dataset import declared_dataset
from include.declare.derived_checks import derived_problems
from include.declare.gold import QueryGold
from include.declare.pipeline import Pipeline, Retention, retention_findings
from include.ground.settings import Settings

FLIGHTS = declared_dataset(Settings(state=Path("/nowhere")), "flights")
ADDITIVE = tuple(gold for gold in FLIGHTS.pipeline.gold if not isinstance(gold, QueryGold))
DAY = timedelta(days=1)


def pipeline(silver: timedelta | None, **changed: object) -> Pipeline:
    return replace(FLIGHTS.pipeline, gold=ADDITIVE, retention=Retention(silver=silver), **changed)


def contract(past: timedelta | None) -> Contract:
    time = FLIGHTS.pipeline.event_time
    columns = (replace(each, past=past) if each.name == time else each for each in FLIGHTS.contract.columns)
    return replace(FLIGHTS.contract, columns=tuple(columns))


LONGEST = 30 * DAY + timedelta(minutes=10) + FLIGHTS.pipeline.horizon


@pytest.mark.parametrize(
    ("declared", "past", "why"),
    [
        (pipeline(None), None, ""),
        (pipeline(LONGEST), 30 * DAY, ""),
        (pipeline(LONGEST - timedelta(minutes=1)), 30 * DAY, "must be at least"),
        (pipeline(9000 * DAY), None, "property: past, value: 30 days"),
        (replace(pipeline(9000 * DAY), gold=FLIGHTS.pipeline.gold), 30 * DAY, "computes rows from silver again"),
    ],
)
def test_age_of_silver_must_cover_late_duplicates(declared: Pipeline, past: timedelta | None, why: str) -> None:
    found = [text for _, text in retention_findings(declared, contract(past))]
    assert len(found) == bool(why)
    assert why in "".join(found)


def test_age_of_bronze_is_an_hour_at_least() -> None:
    short = replace(FLIGHTS.pipeline, retention=Retention(bronze=timedelta(minutes=59)))
    ((key, why),) = retention_findings(short, FLIGHTS.contract)
    assert (key, why) == (("retention", "bronze"), "must be at least 1 hour: the stream reads its records from bronze")


def test_derived_dataset_refuses_a_source_that_expires(tmp_path: Path) -> None:
    source, derived = tmp_path / "meter", tmp_path / "usage"
    source.mkdir()
    derived.mkdir()
    (source / "pipeline.yaml").write_text("topic: meter\nretention: {silver: 30 days}\n")
    (derived / "usage.sql").write_text("select device, count(*) as readings from readings group by device\n")
    (derived / "derived.yaml").write_text(
        "sources: {readings: silver.meter}\ngold:\n  usage:\n    query: usage.sql\n    grain: [device]\n"
        "    touched_by: {readings: {device: device}}\nretention: {bronze: 3 days}\n"
    )
    settings = Settings(state=tmp_path / "state", datasets=tmp_path)
    found = " ".join(map(str, derived_problems(settings, "usage")))
    assert "silver.meter expires (retention.silver of meter)" in found
    assert "a derived dataset has no bronze" in found
