"""An ingest batch has about as many bytes as declared, whatever the size of its records."""

from __future__ import annotations

from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
from grown_history import GrownHistory

from include.ground.settings import Settings
from spark_jobs.backends import release
from spark_jobs.backends.release import BronzeEnd, last_of_run
from spark_jobs.layers.bronze import ReleasedBronze
from spark_jobs.stream.pacing import BatchLimit, BatchLimitChanged, newest_files, size_in_bronze


@pytest.mark.parametrize(("record", "offsets"), [(1_000, 1_000), (4_000, 250), (10_000_000, 1)])
def test_large_records_make_small_batches(record: int, offsets: int) -> None:
    limit = BatchLimit(most_offsets=1_000, most_bytes=1_000_000)
    limit.measure(10, 10 * record)
    assert limit.apply() == offsets


def test_query_starts_again_only_when_its_limit_is_wrong_by_half() -> None:
    limit = BatchLimit(most_offsets=1_000, most_bytes=1_000_000)
    limit.measure(1, 1_900)
    limit.refuse_outdated()
    limit.measure(1, 2_000)
    with pytest.raises(BatchLimitChanged, match="at most 500 offsets instead of 1,000"):
        limit.refuse_outdated()
    assert limit.apply() == 500
    limit.refuse_outdated()
    limit.measure(0, 0)
    limit.measure(1, 1_100)
    limit.refuse_outdated()
    limit.measure(1, 10)
    with pytest.raises(BatchLimitChanged, match="at most 1,000 offsets instead of 500"):
        limit.refuse_outdated()


def test_records_of_the_newest_batch_are_measured(settings: Settings) -> None:
    history = GrownHistory(settings)
    assert newest_files(history.release.writer.bronze) == []
    for _ in range(3):
        history.add_batch(published=False)
    bronze = history.release.writer.bronze
    (newest,) = newest_files(bronze)
    assert newest in bronze.batch_files(2, 2)
    footer = pq.read_metadata(bronze.spec.path / newest.path)
    assert size_in_bronze(bronze, [newest]) == (footer.num_rows, footer.row_group(0).total_byte_size)


def test_run_of_large_records_has_fewer_batches(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    history = GrownHistory(settings)
    for _ in range(6):
        history.add_batch(published=False)
    bronze = ReleasedBronze(history.release.writer.bronze, frozenset())
    assert last_of_run(bronze, 0, 5, 60) == 2
    size = min(file.size // file.rows for file in bronze.table.files())
    monkeypatch.setattr(release, "FOOTER_BYTES", 0)
    monkeypatch.setattr(release, "ROW_BYTES", size // 2)
    assert last_of_run(bronze, 0, 5, 60) == 0
    end = BronzeEnd(0, has_backlog=True, woken=-1)
    assert history.release.large_run(0, end, 60) == (0, 0), "weighed, its records are more than half of a run"
    monkeypatch.setattr(release, "ROW_BYTES", size * 2)
    assert history.release.large_run(0, end, 60) is None


def test_bronze_is_asked_for_waking_partitions_only_if_one_woke_after_the_first_batch(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = GrownHistory(settings)
    for _ in range(4):
        history.add_batch(published=False)
    monkeypatch.setattr(release, "last_before_waking", asked := Mock(side_effect=lambda _, first, last: first))
    assert history.release.large_run(1, BronzeEnd(3, woken=1), 40) == (1, 2)
    asked.assert_not_called()
    assert history.release.large_run(1, BronzeEnd(3, woken=2), 40) == (1, 1)
    assert history.release.large_run(1, BronzeEnd(3), 40) == (1, 1)
