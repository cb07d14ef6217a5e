"""A source and the derived datasets that read a changed column: planned, built, published and rolled back as one."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_codes import raises
from joint_site import BIG, HUGE, JointSite, joint_site, tap
from pyspark.sql import SparkSession

from include.change.stages import cancel, confirm, roll_back
from include.ground.errors import Terminal
from include.plans.comparison import HELD
from include.plans.dependants import SourcesLackColumns
from include.plans.journal import load_comparison, load_plan
from include.plans.plan import Compared, Stage
from include.read.publication import read_publication
from include.state.owner_requests import pending_request


@pytest.fixture
def site(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JointSite:
    """A source with the column `huge`, which the first derived dataset counts, and one over that."""
    site = joint_site(spark, tmp_path, monkeypatch)
    site.declare_taps(HUGE)
    site.declare_hours("huge")
    site.declare_weeks()
    source = site.source()
    source.take([tap(n, n % 5, 10 * n) for n in range(10)])
    site.follow("taps_hours", "taps_weeks")
    return site


def published(site: JointSite) -> list[str]:
    return [read_publication(site.settings, name).release for name in ("taps", "taps_hours", "taps_weeks")]


@pytest.mark.extended
def test_a_release_that_takes_a_column_away_names_who_reads_it_and_is_held(site: JointSite) -> None:
    site.declare_taps(BIG)
    before = published(site)
    record = site.plan("taps")
    assert [(c.table, c.kind) for c in record.plan.changes][-1] == ("taps_hours", "incompatible")
    assert "gold/taps_hours.sql:2 reads huge" in record.plan.changes[-1].why
    record = site.run(record, Stage.COMPARED)
    comparison = load_comparison(site.settings, record.plan.id)
    assert comparison is not None
    (effect,) = comparison.dependants
    assert (effect.reader, comparison.verdict, record.last(Compared).verdict) == ("taps_hours", HELD, HELD)
    assert list(effect.faults) == ["gold/taps_hours.sql:2 reads huge, which silver.taps would no longer have"]
    with raises(Terminal, "dependants-break", match="release run --dataset taps --with taps_hours"):
        site.run(record)
    assert published(site) == before
    site.running.remove("taps_hours")
    site.run(load_plan(site.settings, record.plan.id))
    assert published(site)[0] == record.plan.release
    with pytest.raises(SourcesLackColumns, match=r"gold/taps_hours.sql:2 reads huge, and taps published at release"):
        site.follow("taps_hours")
    site.declare_hours("big")
    site.run(site.plan("taps_hours"))
    site.follow("taps_hours", "taps_weeks")
    assert sum(row["marked"] for row in site.rows("gold.taps_weeks")) == 4


@pytest.mark.extended
def test_a_source_and_its_readers_are_released_and_rolled_back_as_one_plan(site: JointSite) -> None:
    before, rows = published(site), site.rows("gold.taps_weeks")
    site.declare_taps(BIG)
    site.declare_hours("big", "bigs")
    with pytest.raises(SourcesLackColumns, match="reads big.*has no silver.taps.big"):
        site.plan("taps_hours")
    record = site.plan("taps", "taps_hours")
    assert "with taps_hours" in record.plan.about
    record = site.run(record, Stage.COMPARED)
    # The last of the chain reads `marked`, which is `bigs` now.
    with raises(
        Terminal, "dependants-break", match=r"(?s)taps_weeks breaks: gold/taps_weeks.sql:1 reads marked.*--with taps_w"
    ):
        site.run(record)
    cancel(site.settings, load_plan(site.settings, record.plan.id), "ann")
    site.declare_weeks("bigs")
    record = site.run(site.plan("taps", "taps_weeks", "taps_hours"))
    assert record.plan.datasets == ("taps", "taps_hours", "taps_weeks")
    comparison = load_comparison(site.settings, record.plan.id)
    assert comparison is not None
    tables = {table.name: table for table in comparison.tables}
    assert set(tables) == {"silver.taps", "rejected.taps", "gold.taps_last", "gold.taps_hours", "gold.taps_weeks"}
    assert (tables["gold.taps_weeks"].is_equal, comparison.dependants) == (True, [])
    assert published(site) == [record.plan.release, *(member.release for member in record.plan.members)]
    assert confirm(site.settings, record).result == "published"
    assert site.rows("gold.taps_weeks") == rows
    site.follow("taps_hours", "taps_weeks")
    record = roll_back(site.settings, record, "ann")
    assert published(site) == before
    site.follow("taps_hours", "taps_weeks")
    assert site.rows("gold.taps_weeks") == rows


@pytest.mark.extended
@pytest.mark.parametrize(
    "killed",
    [
        pytest.param("taps", marks=pytest.mark.extended),
        "taps_hours",
        pytest.param("taps_weeks", marks=pytest.mark.extended),
    ],
)
def test_a_joint_plan_that_is_killed_between_its_moves_continues_or_moves_back(site: JointSite, killed: str) -> None:
    before = published(site)
    site.declare_taps(BIG)
    site.declare_hours("big", "bigs")
    site.declare_weeks("bigs")
    record = site.run(site.plan("taps", "taps_hours", "taps_weeks"), Stage.APPROVED)
    site.kills = {killed}
    with pytest.raises(KeyboardInterrupt):
        site.run(record)
    # The old release follows no source whose move its own is to follow.
    site.follow("taps_hours")
    assert published(site)[1] in (before[1], record.plan.members[0].release)
    if killed != "taps":
        cancelled = cancel(site.settings, load_plan(site.settings, record.plan.id), "ann")
        assert (cancelled.stage, published(site)) == (Stage.CANCELLED, before)
        record = site.run(site.plan("taps", "taps_hours", "taps_weeks"))
    else:
        record = site.run(load_plan(site.settings, record.plan.id))
    assert published(site) == [record.plan.release, *(member.release for member in record.plan.members)]
    assert [pending_request(site.settings, name) for name in record.plan.datasets] == [None, None, None]
    site.follow("taps_hours", "taps_weeks")
    assert sum(row["marked"] for row in site.rows("gold.taps_weeks")) == 4
