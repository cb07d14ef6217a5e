"""Repair job: what `headrace repair` and `headrace restore` run, without Spark and under the dataset's leases.

Repair rolls tables back to the last batch that all of them have, and replaces an unusable checkpoint by a generation
that starts where bronze ends, so that no record is skipped or doubled; each after confirmation, and what is replaced is
kept. Restore fetches the published tables from the object store; the ledger and the checkpoint follow them.
After a crash: run it again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from include.declare.dataset import Dataset, declared_dataset
from include.declare.derived_dataset import derived_names
from include.ground.errors import HeadraceError
from include.ground.paths import bronze_path, checkpoint_path, lease_path, removed_commits_path
from include.ground.settings import Settings, load_settings
from include.observe.ledger_writer import rebuild
from include.read.fetch_dataset import RestoredDataset, fetch_dataset, store_of
from include.state.lease import take_lease
from include.state.process_states import stream_name
from include.state.run_files import bootstrap_servers
from include.state.streams import status_file
from spark_jobs.layers.bronze import bronze_spec
from spark_jobs.stream.preflight import (
    OffsetsExpired,
    bronze_head,
    bronze_head_at,
    refuse_lost_bronze,
    validated_generation,
)
from spark_jobs.stream.recovery import (
    current_dataset,
    next_generation,
    next_offsets,
    planned_rollback,
    take_release_leases,
)
from spark_jobs.tables.checkpoint import CheckpointUnusable, Generation, write_generation
from spark_jobs.tables.delta_table import Table

REPAIRED, REFUSED, DECLINED = 0, 2, 1


@dataclass(frozen=True)
class Repair:
    """The problem, and the generation that repairs it."""

    problem: CheckpointUnusable | OffsetsExpired
    generation: Generation

    def sentences(self, dataset: str, folder: Path) -> list[str]:
        """Return problem and remedy as lines for the terminal."""
        g = self.generation
        starts = ", ".join(f"partition {p} from offset {start}" for p, start in sorted(g.start.items()))
        return [
            f"found: {self.problem.what}",
            f"remedy: generation {g.number} of bronze.{dataset} starts with batch {g.base}: {starts}",
            f"its checkpoint will be {g.checkpoint(folder)}; the old one stays where it is",
            *([f"lost for good, recorded in the next commit of bronze: {g.lost_ranges}"] if g.lost else []),
        ]


def planned_repair(settings: Settings, dataset: Dataset, bootstrap: str, *, accept_loss: bool = False) -> Repair | None:
    """Run preflight; return the repair that the dataset needs, None when it needs none.

    Raises OffsetsExpired unless the loss is accepted, and TablesDisagree, TopicReplaced and RecordsReplaced, which a
    new generation does not repair.
    """
    refuse_lost_bronze(settings, dataset.name)
    folder = checkpoint_path(settings, dataset.name)
    if not bronze_path(settings, dataset.name).is_dir() and not folder.exists():
        return None
    bronze = Table(bronze_spec(settings, dataset.name))
    head = bronze_head(bronze)
    try:
        validated_generation(settings, dataset, bronze, head, bootstrap)
    except (CheckpointUnusable, OffsetsExpired) as problem:
        return Repair(problem, next_generation(dataset, folder, bronze, head, bootstrap, accept_loss))
    return None


def repair(
    settings: Settings,
    name: str,
    *,
    now: datetime,
    confirm: Callable[[], bool],
    print_line: Callable[[str], None],
    accept_loss: bool = False,
) -> bool:
    """Show each problem and repair it if `confirm` returns True; return whether the dataset is usable.

    With `accept_loss`, records that Kafka has expired are skipped, and the next commit of bronze names their offsets.
    Raises LeaseHeld, DatasetUnknown, NoBroker, PatchBlocksRollback and the errors of `planned_repair`.
    """
    if name in derived_names(settings):
        for line in _derived_advice(settings, name):
            print_line(f"{name}: {line}")
        return True
    # Unlike a driver it makes no snapshot.
    dataset = current_dataset(settings, name, declared_dataset)
    with ExitStack() as leases:
        leases.callback(take_lease(settings, lease_path(settings, name), name, now).release)
        take_release_leases(leases, settings, name, now)
        bootstrap = bootstrap_servers(settings)
        rolled_back = _roll_back(settings, dataset, bootstrap, now, confirm, print_line, accept_loss)
        if rolled_back is False:
            print_line(f"{name}: nothing was changed")
            return False
        planned = planned_repair(settings, dataset, bootstrap, accept_loss=accept_loss)
        if planned is None:
            nothing = f"{name}: nothing to repair; nothing was changed"
            print_line(f"{name}: repaired; next: headrace up {name}" if rolled_back else nothing)
            return True
        folder = checkpoint_path(settings, name)
        for sentence in planned.sentences(name, folder):
            print_line(f"{name}: {sentence}")
        if not confirm():
            print_line(f"{name}: the checkpoint was not changed")
            return False
        write_generation(folder, planned.generation)
        print_line(f"{name}: repaired; headrace up {name} continues from there")
        return True


def _derived_advice(settings: Settings, name: str) -> Iterator[str]:
    """Yield what to do about a derived dataset: its runs begin from the sources as they are published."""
    status = status_file(settings, stream_name(name)).read()
    if status is not None and status.reason:
        yield f"{status.state}: {status.reason}"
        yield (
            "it continues by itself as soon as its sources fit: headrace plan rollback PLAN (of a source's release), or"
            f" headrace release run --dataset {name} after its folder was corrected"
        )
    yield "derived, so it has no checkpoint to repair; nothing was changed"


def _roll_back(
    settings: Settings,
    dataset: Dataset,
    bootstrap: str,
    now: datetime,
    confirm: Callable[[], bool],
    print_line: Callable[[str], None],
    accept_loss: bool,
) -> bool | None:
    """Roll back tables that lost commits; return None when none did, False without confirmation."""
    rollback = planned_rollback(settings, dataset.name)
    if rollback is None:
        return None
    head = bronze_head_at(bronze_path(settings, dataset.name), rollback.bronze)
    next_offsets(dataset, head, bootstrap, accept_loss)
    folder = removed_commits_path(settings, dataset.name) / now.strftime("%Y%m%dT%H%M%SZ")
    for sentence in rollback.sentences(folder):
        print_line(f"{dataset.name}: {sentence}")
    if not confirm():
        return False
    rollback.execute(folder)
    try:
        rebuild(settings)
    except HeadraceError as error:
        print_line(f"{dataset.name}: the ledger has still the removed commits ({error.what}): headrace ledger rebuild")
    return True


def is_confirmed(question: str) -> bool:
    """Ask on the terminal; no input means no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


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
    """`<dataset> ask|yes|dry-run [accept-loss|restore]`: return REPAIRED (or nothing to do), DECLINED, or REFUSED."""
    name, answer, *more = arguments
    question = "repair it so?"
    if more == ["restore"]:
        question = f"take {name} over from the object store? Tables here are moved away; another owner is refused then"
    answers: Mapping[str, Callable[[], bool]] = {
        "ask": lambda: is_confirmed(question),
        "yes": lambda: True,
        "dry-run": lambda: False,
    }
    confirm = answers[answer]
    try:
        settings, now = load_settings(), datetime.now(UTC)
        if more == ["restore"]:
            store_of(settings, name)
            well = confirm()
            if well:
                restore(settings, name, now, print)
        else:
            accept_loss = more == ["accept-loss"]
            well = repair(settings, name, now=now, confirm=confirm, print_line=print, accept_loss=accept_loss)
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return REFUSED
    return REPAIRED if well else DECLINED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
