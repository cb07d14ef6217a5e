"""What a release does to those that read its tables, derived datasets and analyses: decisions without files.

A reader is held to what its released snapshot reads. Types are judged by Spark, which analysed the reader's queries
over the new tables while these were built; without that, a column of another type counts as a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from include.declare.derived_dataset import ColumnUse
from include.ground.errors import Terminal

ColumnTypes = Mapping[str, Mapping[str, str]]
"""The columns of tables with their types, by full name."""
AFFECTED, NOT_AFFECTED = "breaks", "not affected"


@dataclass(frozen=True)
class Reader:
    """A derived dataset at its published release, or an analysis, with the columns that it reads.

    `is_running`: its driver runs or is requested; an analysis runs by a command alone.
    """

    name: str
    release: str
    is_running: bool
    uses: Sequence[ColumnUse]


@dataclass(frozen=True)
class Analysed:
    """What Spark says of a reader's release over the new tables; no `faults`: each query is valid as before."""

    release: str
    faults: Sequence[str] = ()


@dataclass(frozen=True)
class Effect:
    """What a release does to one reader; `faults` is empty when it does not affect it."""

    reader: str
    release: str
    is_running: bool
    faults: Sequence[str] = ()

    @property
    def holds(self) -> bool:
        """Whether the release may not be published now: a running reader would stand still."""
        return self.is_running and bool(self.faults)

    @property
    def sentence(self) -> str:
        """The effect in a line."""
        if not self.faults:
            return f"{self.reader}: {NOT_AFFECTED}"
        state = "" if self.is_running or self.reader.startswith("analysis.") else " (it is stopped)"
        return f"{self.reader} {AFFECTED}{state}: {'; '.join(self.faults)}"


class DependantsBreak(Terminal):
    """Running readers of the tables would stand still; `effects` are those that hold the change."""

    def __init__(self, subject: str, effects: Sequence[Effect], remedy: str) -> None:
        broken = "; ".join(effect.sentence for effect in effects)
        super().__init__(f"{subject} is held: {broken}; what readers see is unchanged", remedy)
        self.effects = tuple(effects)


ANALYSED = TypeAdapter(dict[str, Analysed])


def effects_on(
    readers: Iterable[Reader], before: ColumnTypes, after: ColumnTypes, analysed: Mapping[str, Analysed]
) -> list[Effect]:
    """Return what replacing the tables `before` by `after` does to each reader that reads one of them."""
    reading = [reader for reader in readers if any(use.table in before for use in reader.uses)]
    return [
        Effect(each.name, each.release, each.is_running, tuple(_faults(each, before, after, analysed.get(each.name))))
        for each in reading
    ]


def holding(effects: Iterable[Effect]) -> list[Effect]:
    """Return the effects that hold a release."""
    return [effect for effect in effects if effect.holds]


def release_together(dataset: str, members: Iterable[str]) -> str:
    """Return the command that releases a dataset together with its dependants."""
    return f"headrace release run --dataset {dataset}{''.join(f' --with {name}' for name in members)}"


def held_remedy(dataset: str, plan: str, members: Iterable[str], effects: Sequence[Effect]) -> str:
    """Return the commands that lead on from a held plan: release the readers with it, or stop them."""
    readers = [effect.reader for effect in effects]
    folders = ", ".join(f"include/datasets/{reader}/" for reader in readers)
    together = release_together(dataset, dict.fromkeys([*members, *readers]))
    return (
        f"correct {folders}, then headrace plan cancel {plan} && {together}   (releases them together); "
        f"or headrace down {' '.join(readers)} && headrace plan apply {plan}"
    )


def rollback_remedy(plan: str, released: Mapping[str, str | None]) -> str:
    """Return the commands that roll a plan back after its readers.

    `released`: by reader the plan that published its release; a reader without one is stopped instead.
    """
    steps = [
        f"headrace plan rollback {known}" if known else f"headrace down {reader}" for reader, known in released.items()
    ]
    return " && ".join([*dict.fromkeys(steps), f"headrace plan rollback {plan}"])


def _faults(reader: Reader, before: ColumnTypes, after: ColumnTypes, known: Analysed | None) -> Sequence[str]:
    """Return what a reader loses; a column that is missing already is not taken away."""
    changed = [use for use in reader.uses if _type(before, use) not in (None, _type(after, use))]
    if lost := [use for use in changed if _type(after, use) is None]:
        return [_loss(use, after) for use in lost]
    if known is not None and known.release == reader.release:
        return known.faults if changed else ()
    return [
        f"{use.place} reads {use.column} of {use.table}, {_type(before, use)} → {_type(after, use)}" for use in changed
    ]


def _loss(use: ColumnUse, after: ColumnTypes) -> str:
    if use.table not in after:
        return f"{use.place} reads {use.column} of {use.table}, a table that would no longer exist"
    return f"{use.place} reads {use.column}, which {use.table} would no longer have"


def _type(tables: ColumnTypes, use: ColumnUse) -> str | None:
    return {name.lower(): kind for name, kind in tables.get(use.table, {}).items()}.get(use.column)
