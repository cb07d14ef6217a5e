"""The ledger's totals equal sums over its rows, however commits arrive; `status` reads only them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from include.ground.delta_log import Commit
from include.ground.settings import Settings
from include.observe.ledger_reader import LedgerReader
from include.observe.ledger_rows import insert_commits
from include.observe.ledger_schema import ensure_schema
from include.observe.ledger_writer import writing_engine

DATASET, RELEASE = "flights", "ab12cd34ef56"
RELEASED = f"{DATASET}/{RELEASE}"


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    opened = writing_engine(settings)
    with opened.begin() as connection:
        ensure_schema(connection)
    yield opened
    opened.dispose()


class RandomHistory:
    """Commits of bronze, silver, rejected and one gold table, with patches, and what they add up to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.commits: dict[str, list[Commit]] = {
            path: []
            for path in (f"{DATASET}/bronze", *(f"{RELEASED}/{t}" for t in ("silver", "rejected", "gold/days")))
        }
        self.expected: Counter[str] = Counter()
        for batch in range(40):
            self.add_run(batch)
            if self.random.random() < 0.2:
                self.add_patch(batch)

    def add(self, path: str, app_id: str, last: int, rows: int, **facts: Any) -> None:
        version = len(self.commits[path])
        meta = {"dataset": DATASET, "app_id": app_id, "epoch": 1, "batches": [last, last], "rows": rows, "code": "c"}
        self.commits[path].append(Commit(version, 1_700_000_000_000 + version, meta | facts, app_id, last, (), 0))

    def add_run(self, batch: int) -> None:
        number = self.random.randrange
        rows, invalid, duplicate, broken, total = (number(50) for _ in range(5))
        kafka = {
            "topic": "t",
            "topic_id": "i",
            "query_id": "q",
            "timestamps": None,
            "offsets": {},
            "rows_by_partition": {},
        }
        self.add(f"{DATASET}/bronze", f"{DATASET}/bronze/g", batch, rows, **kafka)
        self.add(f"{RELEASED}/silver", f"{RELEASED}/silver", batch, rows, rows_in=rows + 9, event_time_max={})
        by = {"reasons": {"type": invalid}, "dispositions": {"invalid": invalid, "duplicate": duplicate}}
        warned = {"warnings": {"late": {"validated": 9, "violations": broken, "first": None}}}
        self.add(f"{RELEASED}/rejected", f"{RELEASED}/rejected", batch, invalid, **by, **warned)
        self.add(f"{RELEASED}/gold/days", f"{RELEASED}/gold/days", batch, 5, grains=1, total=total)
        sums = {"bronze": rows, "rows_in": rows + 9, "accepted": rows, "invalid": invalid, "duplicate": duplicate}
        self.expected.update(sums | {"type": invalid, "late": broken})
        self.expected["gold"] = total

    def add_patch(self, batch: int) -> None:
        # Earlier versions wrote `way`.
        plan = {"plan": f"p{batch}", "direction" if batch % 2 else "way": 1, "batch": batch, "rows_removed": 0}
        app_id, moved = f"{RELEASED}/plan/p{batch}", self.random.randrange(5)
        silver = {"total": self.expected["accepted"] + moved, "table": f"silver.{DATASET}", "rows_added": moved}
        self.add(f"{RELEASED}/silver", app_id, 1, 0, **plan, release=RELEASE, **silver)
        changed = {"dispositions": {"invalid": -moved}, "reasons": {"type": -moved}, "table": f"rejected.{DATASET}"}
        self.add(f"{RELEASED}/rejected", app_id, 1, 0, **plan, release=RELEASE, **changed)
        gold = {"total": self.random.randrange(50), "table": "gold.days"}
        self.add(f"{RELEASED}/gold/days", app_id, 1, 0, **plan, release=RELEASE, **gold)
        self.expected.update({"accepted": moved, "invalid": -moved, "type": -moved})
        self.expected["gold"] = gold["total"]


@pytest.mark.parametrize("seed", range(5))
def test_totals_equal_the_sums_however_commits_arrive(engine: Engine, seed: int) -> None:
    history = RandomHistory(seed)
    waiting = [(path, commit) for path, commits in history.commits.items() for commit in commits]
    history.random.shuffle(waiting)
    for path, commit in waiting:
        with engine.begin() as connection:
            # Up to this commit: some are new, some were entered before.
            insert_commits(connection, path, history.commits[path][: commit.version + 1 + history.random.randrange(4)])
    found = LedgerReader(engine).totals()[DATASET]
    release = found.releases[RELEASE]
    totals = {"bronze": found.bronze, "gold": release.gold["days"], "late": release.warned["late"]}
    totals |= {name: getattr(release, name) for name in ("rows_in", "accepted", "invalid", "duplicate")}
    totals |= {"type": release.reasons.get("type", 0)}
    assert totals == dict(history.expected)
    assert (found.last_batch, release.last_batch) == (39, 39)


def test_failed_transaction_counts_nothing(engine: Engine) -> None:
    commits = RandomHistory(0).commits[f"{DATASET}/bronze"]
    with engine.connect() as connection:
        insert_commits(connection, f"{DATASET}/bronze", commits)
        connection.rollback()
    assert LedgerReader(engine).totals() == {}
    with engine.begin() as connection:
        insert_commits(connection, f"{DATASET}/bronze", commits)
        insert_commits(connection, f"{DATASET}/bronze", commits)
    assert LedgerReader(engine).totals()[DATASET].bronze == sum(c.metadata["rows"] for c in commits if c.metadata)


def test_totals_read_no_history(engine: Engine) -> None:
    """A query of `status` that scans a table of runs or batches grows with the age of the stream."""
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append((given[2], given[3])))
    history = RandomHistory(0)
    with engine.begin() as connection:
        for path, commits in history.commits.items():
            insert_commits(connection, path, commits)
    statements.clear()
    LedgerReader(engine).totals()
    queries = [each for each in statements if each[0].lower().startswith("select")]
    with engine.begin() as connection:
        plans = [
            line.detail
            for statement, values in queries
            for line in connection.exec_driver_sql(f"explain query plan {statement}", values)
        ]
        scanned = {plan for plan in plans if plan.startswith("SCAN")}
        assert connection.execute(text("select count(*) from totals")).scalar_one() < 12
    assert scanned <= {"SCAN totals", "SCAN headrace_ledger", "SCAN sqlite_master"}, scanned
    assert len(plans) > 3
