"""How many files a reader enters who follows a run to its publication, or a release while it is planned.

docs/architecture.md lists these files. The bounds are lowered with each change that makes it possible.
"""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from declared_gold import meter_release, reading
from pyspark.sql import SparkSession
from small_release import SmallRelease
from traced_way import TracedWay, traced_way

from include.change.plan_parameters import ReleaseParameters
from include.change.release import ReleasePlan
from include.ground.paths import snapshot_path
from include.ground.settings import CLONE
from spark_jobs.stream.active_releases import open_active_release
from spark_jobs.tables.failpoints import Step, step_listeners

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
# One table: several would be merged in threads, in any order.
GOLD = """
  meter_days:
    kind: additive
    window: {column: read_at, size: 1 day, as: day}
    measures: {litres: {sum: litres}}
"""
RUN, PLAN = "Files of a run", "Files of a release plan"
BOUNDS = {RUN: (35, 89), PLAN: (48, 95)}
"""Files and returns; the goals are 25 and 30, 15 and 20."""
STEPS = [
    Step.SILVER_WRITTEN,
    Step.SILVER_COMMITTED,
    Step.REJECTED_COMMITTED,
    Step.GOLD_WRITTEN,
    Step.GOLD_COMMITTED,
    Step.ALL_GOLD_COMMITTED,
    Step.PUBLISHED,
]


@pytest.fixture
def made(spark: SparkSession, tmp_path: Path) -> SmallRelease:
    """Return a release that has refined two batches."""
    made = meter_release(spark, tmp_path, GOLD)
    for minute in range(2):
        made.take([reading("d1", minute, 1)])
    return made


def listed(name: str) -> list[str]:
    """Return the files that docs/architecture.md lists under a name, sorted."""
    text = (CLONE / "docs" / "architecture.md").read_text("utf-8")
    block = re.search(rf"^\*{name}\.\*.*?^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None, f"docs/architecture.md has no list '*{name}.*'"
    return sorted(set(block[1].split()))


def assert_way(name: str, way: TracedWay) -> None:
    """Assert that a way is as listed, and within its bounds."""
    assert sorted(way.files) == listed(name), "docs/architecture.md lists other files; these are, in their order:\n" + (
        "\n".join(way.files)
    )
    files, returns = BOUNDS[name]
    assert len(way.files) <= files
    assert way.returns <= returns, way.steps


def test_files_of_a_run_from_planned_batches_to_the_publication(made: SmallRelease) -> None:
    active, passed = open_active_release(made.spark, made.settings, made.dataset, made.bronze), list[Step]()
    # What a driver's first run plans once is not part of the way of each run.
    for minute in (2, 3):
        last = made.ingest([reading("d1", minute, 2), reading("d1", 1, 1)])
        with traced_way() as way:
            step_listeners.append(passed.append)
            try:
                active.refine_next(made.settings, last, publishing=True)
            finally:
                step_listeners.remove(passed.append)
    active.lease.release()
    assert passed == STEPS * 2
    assert_way(RUN, way)


def test_files_of_a_release_plan(made: SmallRelease, tmp_path: Path) -> None:
    declared = tmp_path / "declared"
    settings, pipeline = made.settings.model_copy(update={"datasets": declared}), declared / "meter" / "pipeline.yaml"
    shutil.copytree(made.dataset.folder, snapshot_path(settings, "meter", made.dataset.release))
    pipeline.write_text(f"{pipeline.read_text('utf-8')}# another release\n", "utf-8")
    # What the process keeps after the first plan, such as the name of this host, is known before the second.
    ReleasePlan().plan(settings, "meter", ReleaseParameters(dry_run=True), "ann", NOON)
    with traced_way() as way:
        record = ReleasePlan().plan(settings, "meter", ReleaseParameters(), "ann", NOON)
    assert record.plan.base == made.dataset.release
    assert_way(PLAN, way)
