"""Derived tables over a table with deletes: a row that is deleted, or moves, leaves the grain in which it was."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree

import pytest
from account_changes import ACCOUNTS, Change, current, history, versions
from dealt_events import deal
from held_lease import HeldLease
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from small_release import small_release

from include.declare.derived_dataset import snapshot_derived
from include.ground.settings import Settings
from include.read.published_tables import pinned
from spark_jobs.stream.derived import DerivedRelease
from spark_jobs.tables.failpoints import Step

NAME = "owner_balances"
DERIVED = """
sources: {now: gold.account_now, versions: gold.account_versions}
gold:
  owner_balances:
    query: gold/balances.sql
    grain: [owner]
    touched_by: {now: {owner: "coalesce(owner, 'nobody')"}, versions: {owner: owner}}
"""
BALANCES = """
with rows as (
  select coalesce(owner, 'nobody') as owner, cast(balance as bigint) as balance, 0 as ended from now
  union all
  select owner, 0, 1 from versions where not is_current
)
select owner, sum(balance) as balance, count_if(ended = 0) as accounts, sum(ended) as ended from rows group by owner
"""


def expected(changes: Sequence[Change]) -> dict[str, tuple[int, int, int]]:
    """Return balance, accounts and ended versions of each owner."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for _, owner, balance in current(changes):
        found[owner or "nobody"][0] += balance
        found[owner or "nobody"][1] += 1
    for row in versions(changes):
        if not row[-1]:
            found[row[1]][2] += 1
    return {owner: (balance, accounts, ended) for owner, (balance, accounts, ended) in found.items()}


@pytest.mark.parametrize(
    ("backend", "seed", "batches"),
    [
        # Three accounts of the first batch are deleted by the second, in whose run the process dies.
        ("local", 15, 2),
        pytest.param("local", 5, 4, marks=pytest.mark.extended),
        pytest.param("spark", 5, 4, marks=pytest.mark.extended),
    ],
)
def test_deletions_reach_a_table_derived_from_the_rows(
    spark: SparkSession, tmp_path: Path, backend: str, seed: int, batches: int
) -> None:
    datasets = tmp_path / "datasets"
    copytree(ACCOUNTS, datasets / "accounts")
    (datasets / NAME / "gold").mkdir(parents=True)
    (datasets / NAME / "derived.yaml").write_text(DERIVED)
    (datasets / NAME / "gold" / "balances.sql").write_text(BALANCES)
    settings = Settings(state=tmp_path / "state", datasets=datasets, backend=backend)
    accounts, so_far, steps = small_release(spark, settings, "accounts"), list[Change](), [None, Step.GOLD_WRITTEN]
    derived = DerivedRelease(settings, snapshot_derived(settings, NAME), spark, HeldLease())
    for batch, step in zip(deal(history(3, 80), seed, batches), steps * (batches // 2), strict=True):
        accounts.take([each.sent() for each in batch])
        so_far += batch
        run = derived.next_run()
        assert run is not None
        if step is not None:
            with pytest.raises(Died), dying_at(step):
                derived.execute(run)
            derived = DerivedRelease(settings, snapshot_derived(settings, NAME), spark, HeldLease())
            run = derived.next_run()
            assert run is not None
        derived.execute(run)
        rows = pinned(settings).read(f"gold.{NAME}").collect()
        assert {row[0]: row[1:] for row in rows.select("owner", "balance", "accounts", "ended").rows()} == expected(
            so_far
        )
    assert derived.next_run() is None
