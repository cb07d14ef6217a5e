"""A claimed table: every commit carries the owner's transaction, and no earlier owner commits after the claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from include.ground.app_ids import OWNER_APP_ID, owner_epoch
from include.ground.delta_log import commits, transaction_version
from spark_jobs.tables import delta_table
from spark_jobs.tables.data_files import TableSpec
from spark_jobs.tables.delta_table import RESTATED, OwnershipLost, Table

COLUMNS = StructType().add("n", LongType()).add("_month", StringType())


@pytest.fixture
def spec(tmp_path: Path) -> TableSpec:
    return TableSpec("silver.small", tmp_path / "a table", COLUMNS, "_month", ("n",))


def claimed(spec: TableSpec, epoch: int) -> Table:
    table = Table(spec)
    table.claim(epoch)
    return table


def commit(table: Table, version: int, app_id: str = "small/runs") -> None:
    table.commit(app_id, version, {"app_id": app_id, "batches": [version, version]}, [])


def test_transactions_before_and_after_a_claim_are_found_by_whoever_asks(spec: TableSpec) -> None:
    before = Table(spec)
    commit(before, 3)
    commit(before, 7, "small/plan")
    table = claimed(spec, 1)
    assert (table.committed("small/runs"), table.committed("small/plan"), table.committed("other")) == (3, 7, -1)
    commit(table, 4)
    commit(table, 9, "small/expiry")
    for reader in (table, Table(spec), claimed(spec, 2)):
        assert [reader.committed(app_id) for app_id in ("small/runs", "small/plan", "small/expiry")] == [4, 7, 9]
    assert transaction_version(spec.path, "small/runs") == 4
    assert [(each.app_id, each.app_version) for each in commits(spec.path) if each.app_id] == [
        *(("small/runs", 3), ("small/plan", 7), ("small/runs", 4), ("small/expiry", 9)),
    ]


def test_each_commit_after_a_claim_carries_the_owner_with_its_epoch(spec: TableSpec) -> None:
    commit(claimed(spec, 5), 0)
    commit(claimed(spec, 6), 1)
    owners = [each.owner for each in commits(spec.path, after=0)]
    assert [owner_epoch(owner or 0) for owner in owners] == [5, 5, 6, 6]
    assert owners == sorted(owners, key=lambda owner: owner or 0)


def test_earlier_owner_commits_nothing_after_a_claim(spec: TableSpec) -> None:
    old = claimed(spec, 1)
    commit(old, 0)
    new = claimed(spec, 2)
    with pytest.raises(OwnershipLost):
        commit(old, 1)
    commit(new, 1)
    with pytest.raises(OwnershipLost):
        old.claim(2)
    with pytest.raises(OwnershipLost, match="has not"):
        commit(Table(spec), 2)
    assert Table(spec).committed("small/runs") == 1


def test_transactions_are_found_without_reading_more_than_some_commits(
    spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = claimed(spec, 1)
    commit(table, 1, "small/plan")
    for number in range(3 * RESTATED):
        commit(table, number)
    read = []
    from include.ground import delta_log

    original = delta_log.read_commit
    monkeypatch.setattr(delta_log, "read_commit", lambda *at: read.append(at) or original(*at))
    assert Table(spec).committed("small/plan") == 1
    assert len(read) <= RESTATED
    assert transaction_version(spec.path, OWNER_APP_ID) == table._owner


def test_commit_of_which_the_end_was_not_seen_keeps_its_owner_s_number(
    spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, put = claimed(spec, 3), delta_table.put_commit

    def fails_afterwards(*args: Any, **options: Any) -> None:
        put(*args, **options)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(delta_table, "put_commit", fails_afterwards)
        with pytest.raises(OSError, match="Input/output"):
            commit(table, 0)
    assert table.committed("small/runs") == 0
    commit(table, 1)
    owners = [each.owner or 0 for each in commits(spec.path, after=0)]
    assert [owner - owners[0] for owner in owners] == [0, 1, 2]


def test_table_that_another_owner_claimed_meanwhile_is_not_continued(
    spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = claimed(spec, 3)
    with monkeypatch.context() as patched:
        patched.setattr(delta_table, "put_commit", Mock(side_effect=OSError(5, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            commit(table, 0)
    claimed(spec, 4)
    for _ in range(2):
        with pytest.raises(OwnershipLost):
            table.committed("small/runs")
