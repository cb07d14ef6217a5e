"""A run, its publication, its entry in the ledger and the driver's lag cost the same after a longer history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from grown_history import GrownHistory
from sqlalchemy import Engine, event

from include.ground import delta_log
from include.ground.settings import Settings
from include.observe.ledger_reader import open_reader
from spark_jobs.stream.upkeep import AutomaticCompaction
from spark_jobs.tables.data_files import DataFile


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts commits read, logs listed, files looked at, and hundreds of steps of SQLite's virtual machine."""
    counts: Counter[str] = Counter()

    def count(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            counts[name] += 1
            return function(*arguments)

        return counted

    def watch(connection: Any, _: object) -> None:
        connection.set_progress_handler(count("SQL", lambda: 0), 100)

    monkeypatch.setattr(delta_log, "read_commit", count("commits", delta_log.read_commit))
    monkeypatch.setattr(delta_log, "log_versions", count("logs", delta_log.log_versions))
    monkeypatch.setattr(DataFile, "overlaps", count("files", DataFile.overlaps))
    event.listen(Engine, "connect", watch)
    yield counts
    event.remove(Engine, "connect", watch)


def test_run_after_five_times_the_history_does_the_same_work(settings: Settings, work: Counter[str]) -> None:
    history = GrownHistory(settings)
    # Compaction would hide a pass over all files.
    history.compaction = AutomaticCompaction(replace(history.compaction.policy, min_files=0))
    found = []
    for batches in (5, 25):
        while history.batches < batches:
            history.add_batch(published=history.batches == batches - 1)
        work.clear()
        history.add_batch()
        totals = open_reader(settings).totals()["flights"]
        assert totals.bronze == history.release.writer.bronze.rows
        found.append(dict(work))
    assert all(found[0][name] for name in ("commits", "files", "SQL")), "counted"
    assert {name: n for name, n in found[1].items() if n > 1.1 * found[0].get(name, 0)} == {}
