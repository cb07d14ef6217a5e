"""Restore job: tables from the object store, then the ledger and the checkpoint that follow them. `headrace restore`.

Reads: the store, Kafka's offsets. Writes: what `fetch_dataset` writes, the ledger, `generation.json`.
Guarantee: the stream continues where the restored bronze ends, so that each record is in the tables once.
After a crash: run it again.
Does not: start Spark, or run together with a driver: it holds the lease.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from include.declare.derived_dataset import derived_names
from include.ground.errors import HeadraceError
from include.ground.paths import lease_path
from include.ground.settings import Settings, load_settings
from include.observe.ledger_writer import rebuild
from include.read.fetch_dataset import RestoredDataset, fetch_dataset, store_of
from include.state.lease import take_lease
from spark_jobs.jobs.repair_job import is_confirmed, repair

RESTORED, DECLINED, REFUSED = 0, 1, 2


def restore(settings: Settings, name: str, now: datetime, print_line: Callable[[str], None]) -> None:
    """Restore a dataset, and make a stream ready to continue. Raises LeaseHeld and what `fetch_dataset` raises."""
    lease = take_lease(settings, lease_path(settings, name), name, now)
    try:
        done = fetch_dataset(settings, name, now)
        for line in sentences(name, done):
            print_line(line)
        rebuild(settings)
    finally:
        lease.release()
    if done.batch < 0 or name in derived_names(settings):
        print_line(f"{name}: next: headrace up {name}")
        return
    repair(settings, name, now=now, confirm=lambda: True, print_line=print_line)


def sentences(name: str, done: RestoredDataset) -> list[str]:
    """Return what was restored as lines for the terminal."""
    if done.batch < 0:
        lines = [f"{name}: nothing of it was published; this state folder owns it now, and its tables are unchanged"]
    else:
        lines = [f"{name}: batch {done.batch} of release {done.release}: {done.files:,} files, {done.bytes:,} bytes"]
    lines += [f"{name}:   {table} at version {version}" for table, version in sorted(done.versions.items())]
    if done.removed:
        lines.append(
            f"{name}: {len(done.removed)} objects of commits that were never published were removed from the store"
        )
    if done.moved_to:
        lines.append(f"{name}: what was here is in {done.moved_to}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """`<dataset> ask|yes`: return RESTORED, DECLINED, or REFUSED."""
    name, answer = arguments
    question = (
        f"take {name} over from the object store? Tables here are moved away; another owner is refused from then on"
    )
    try:
        settings = load_settings()
        store_of(settings, name)
        if answer != "yes" and not is_confirmed(question):
            return DECLINED
        restore(settings, name, datetime.now(UTC), print)
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return REFUSED
    return RESTORED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
