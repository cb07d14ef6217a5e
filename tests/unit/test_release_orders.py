"""A source and a derived dataset over it, changed in every order: what must work, what is refused, and what leads on.

The orders are enumerated over the functions that decide; a release is a set of columns, a reader the column it reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from include.declare.column_lineage import derived_uses
from include.declare.derived_dataset import DerivedDataset, load_derived
from include.plans.dependants import (
    Analysed,
    ColumnTypes,
    Effect,
    Reader,
    SourcesLackColumns,
    effects_on,
    held_remedy,
    holding,
    missing_columns,
    rollback_remedy,
)
from include.read.publication import SourceVersion

DEPTH = int(os.environ.get("HEADRACE_TEST_ORDERS", "4"))
"""Number of steps of an order; 6 take a minute."""
SOURCES = {
    "first": {"huge": "boolean"},
    "renamed": {"big": "boolean"},
    "both": {"huge": "boolean", "big": "boolean"},
    "retyped": {"huge": "string"},
}
READERS = {"of_huge": "huge", "of_big": "big", "of_none": "n"}
FOLDERS = TemporaryDirectory(prefix="derived folders ")
CONSISTENT = [
    (source, reader)
    for source, reader in product(SOURCES, READERS)
    if reader == "of_none" or SOURCES[source].get(READERS[reader]) == "boolean"
]
DERIVED = """sources: {taps: silver.taps}
gold:
  taps_hours:
    query: taps_hours.sql
    grain: [hour]
    touched_by: {taps: {hour: "date_trunc('hour', at)"}}
"""


class Plan(NamedTuple):
    """An applied plan: what it published in place of what, of the source and of the reader; None: not its own."""

    source: tuple[str, str] | None
    reader: tuple[str, str] | None


class World(NamedTuple):
    """What is published and declared; `over`: the source that the reader has used last; `plans` can be rolled back."""

    source: str = "first"
    reader: str = "of_huge"
    source_folder: str = "first"
    reader_folder: str = "of_huge"
    over: str = "first"
    is_running: bool = True
    plans: tuple[Plan, ...] = ()

    @property
    def is_halted(self) -> bool:
        """Whether the reader runs over a source without its columns."""
        return self.is_running and not fits(self.source, self.reader)

    def followed(self) -> World:
        """Return the world after the reader has followed its source, if it can."""
        return self._replace(over=self.source) if self.is_running and not self.is_halted else self


class Refused(NamedTuple):
    """A command was refused; `remedy` is what it names."""

    remedy: str


@cache
def declared(reader: str) -> DerivedDataset:
    folder = Path(FOLDERS.name, reader)
    folder.mkdir()
    (folder / "derived.yaml").write_text(DERIVED)
    query = f"select date_trunc('hour', at) as hour, max({READERS[reader]}) as most from taps group by 1"
    (folder / "taps_hours.sql").write_text(query)
    return load_derived("taps_hours", folder)


@cache
def columns(source: str) -> ColumnTypes:
    return {"silver.taps": {"at": "timestamp", "n": "integer", **SOURCES[source]}}


@cache
def reading(reader: str, is_running: bool) -> Reader:
    known = {table: {name for each in SOURCES for name in columns(each)[table]} for table in ("silver.taps",)}
    return Reader("taps_hours", reader, is_running, derived_uses(declared(reader), known))


def fits(source: str, reader: str) -> bool:
    return (source, reader) in CONSISTENT


@cache
def effects(before: str, after: str, reader: str, is_running: bool) -> Sequence[Effect]:
    """Return what replacing the source does to the reader; Spark finds columns of another type."""
    wrong = [] if fits(after, reader) else ["taps_hours.sql:1: the argument must be BOOLEAN"]
    analysed = {"taps_hours": Analysed(reader, wrong)}
    return effects_on([reading(reader, is_running)], columns(before), columns(after), analysed)


def release_source(world: World) -> World | Refused:
    """`headrace release run --dataset taps`"""
    if world.source_folder == world.source:
        return Refused("change something in include/datasets/taps/ first")
    held = holding(effects(world.source, world.source_folder, world.reader, world.is_running))
    if held:
        return Refused(held_remedy("taps", "release-taps-1", [], held))
    plan = Plan((world.source, world.source_folder), None)
    return world._replace(source=world.source_folder, plans=(*world.plans, plan)).followed()


def release_reader(world: World) -> World | Refused:
    """`headrace release run --dataset taps_hours`"""
    if world.reader_folder == world.reader:
        return Refused("change something in include/datasets/taps_hours/ first")
    lacking = missing_columns(declared(world.reader_folder), columns(world.source), columns(world.over))
    if lacking or not fits(world.source, world.reader_folder):
        return Refused(lacks(lacking, world.source) if lacking else "correct include/datasets/taps_hours/")
    plan = Plan(None, (world.reader, world.reader_folder))
    return world._replace(reader=world.reader_folder, plans=(*world.plans, plan)).followed()


def lacks(lacking: Sequence[object], source: str) -> str:
    versions = {"silver.taps": SourceVersion("taps/x/silver", 1, source, 1, "")}
    return SourcesLackColumns("taps_hours", lacking, versions).remedy  # type: ignore[arg-type]


def release_both(world: World) -> World | Refused:
    """`headrace release run --dataset taps --with taps_hours`"""
    for folder, published, name in (
        (world.source_folder, world.source, "taps"),
        (world.reader_folder, world.reader, "taps_hours"),
    ):
        if folder == published:
            return Refused(f"change something in include/datasets/{name}/ first")
    if not fits(world.source_folder, world.reader_folder):
        return Refused("correct include/datasets/taps_hours/")
    plan = Plan((world.source, world.source_folder), (world.reader, world.reader_folder))
    after = world._replace(source=world.source_folder, reader=world.reader_folder, plans=(*world.plans, plan))
    return after._replace(over=after.source)


def roll_back(world: World) -> World | Refused:
    """`headrace plan rollback` of the last plan whose releases are published."""
    for place in reversed(range(len(world.plans))):
        plan = world.plans[place]
        moved = (plan.source, world.source), (plan.reader, world.reader)
        if all(each is None or each[1] == published for each, published in moved):
            return rolled_back(world, place)
    return Refused("headrace plan list")


def rolled_back(world: World, place: int) -> World | Refused:
    plan = world.plans[place]
    source, reader = plan.source[0] if plan.source else world.source, plan.reader[0] if plan.reader else world.reader
    others = (*world.plans[:place], *world.plans[place + 1 :])
    if plan.source and not plan.reader:
        known = columns(world.source), columns(source)
        held = holding(effects_on([reading(world.reader, world.is_running)], *known, {}))
        if held:
            return Refused(rollback_remedy("release-taps-1", {"taps_hours": own_plan(world)}))
    if plan.reader and not plan.source and not fits(source, reader):
        return Refused("headrace release run --dataset taps_hours")
    return world._replace(source=source, reader=reader, plans=others).followed()


def own_plan(world: World) -> str | None:
    """Return the plan that published the reader's release."""
    owners = [each for each in world.plans if each.reader and not each.source and each.reader[1] == world.reader]
    return "derived-release-taps_hours-1" if owners else None


COMMANDS = {
    "headrace release run --dataset taps": release_source,
    "headrace release run --dataset taps_hours": release_reader,
    "headrace release run --dataset taps --with taps_hours": release_both,
    "headrace plan rollback": roll_back,
    "headrace down taps_hours": lambda world: world._replace(is_running=False),
    "headrace up taps_hours": lambda world: world._replace(is_running=True).followed(),
}


def steps(world: World) -> Iterator[World]:
    """Yield the worlds after one edit of a folder, or one command that is not refused."""
    yield from (world._replace(source_folder=source) for source in SOURCES if source != world.source_folder)
    yield from (world._replace(reader_folder=reader) for reader in READERS if reader != world.reader_folder)
    yield from (after for act in COMMANDS.values() if isinstance(after := act(world), World))


@cache
def reached(depth: int) -> frozenset[World]:
    """Return the worlds after at most so many steps."""
    worlds = new = frozenset({World()})
    for _ in range(depth):
        new = frozenset(after for world in new for after in steps(world)) - worlds
        worlds |= new
    return worlds


def test_no_release_and_no_rollback_halts_a_running_reader() -> None:
    """A reader is halted only by its own start over a source that was replaced while it was stopped."""
    for world in reached(DEPTH):
        for name, act in COMMANDS.items():
            after = act(world)
            if isinstance(after, World) and after.is_halted and not world.is_halted:
                assert name == "headrace up taps_hours", (world, name)


@pytest.mark.parametrize(("source", "reader"), CONSISTENT)
def test_in_every_state_commands_publish_folders_that_fit_each_other(source: str, reader: str) -> None:
    """No state is left without a command: three of them publish what the folders say, whatever happened before."""
    for world in {each._replace(source_folder=source, reader_folder=reader, plans=()) for each in reached(DEPTH)}:
        worlds = {world}
        for _ in range(3):
            worlds |= {after for each in worlds for act in COMMANDS.values() if isinstance(after := act(each), World)}
        done = [each for each in worlds if (each.source, each.reader, each.is_running) == (source, reader, True)]
        assert done, world
        assert not any(each.is_halted for each in done), world


def test_the_command_that_a_refusal_names_leads_on() -> None:
    """A held release names the joint one and the stop, a held rollback the order: each works where it is named."""
    held = rolled = 0
    for world in reached(DEPTH):
        refusal = release_source(world)
        if isinstance(refusal, Refused) and "headrace plan cancel" in refusal.remedy:
            held += 1
            assert "headrace release run --dataset taps --with taps_hours" in refusal.remedy
            fixing = next(reader for reader in READERS if fits(world.source_folder, reader) and reader != world.reader)
            assert isinstance(release_both(world._replace(reader_folder=fixing)), World)
            assert "headrace down taps_hours && headrace plan apply release-taps-1" in refusal.remedy
            assert isinstance(release_source(world._replace(is_running=False)), World)
        refusal = roll_back(world)
        if isinstance(refusal, Refused) and refusal.remedy.endswith("headrace plan rollback release-taps-1"):
            rolled += 1
            first = refusal.remedy.partition(" && ")[0]
            assert first in ("headrace down taps_hours", "headrace plan rollback derived-release-taps_hours-1")
            if first == "headrace down taps_hours":
                assert isinstance(roll_back(world._replace(is_running=False)), World)
    assert held
    assert rolled


@pytest.mark.parametrize(
    ("after", "reader", "is_running", "faults"),
    [
        ("both", "of_huge", True, []),
        ("renamed", "of_none", True, []),
        ("renamed", "of_huge", True, ["taps_hours.sql:1 reads huge, which silver.taps would no longer have"]),
        ("renamed", "of_huge", False, ["taps_hours.sql:1 reads huge, which silver.taps would no longer have"]),
        ("retyped", "of_huge", True, ["taps_hours.sql:1: the argument must be BOOLEAN"]),
        ("retyped", "of_none", True, []),
    ],
)
def test_what_a_release_does_to_a_reader(after: str, reader: str, is_running: bool, faults: list[str]) -> None:
    (effect,) = effects("first", after, reader, is_running)
    assert (list(effect.faults), effect.holds) == (faults, bool(faults) and is_running)
    assert ("not affected" in effect.sentence) == (not faults)


def test_a_retyped_column_counts_as_a_fault_until_spark_has_analysed_the_reader_at_its_release() -> None:
    found = [
        effects_on([reading("of_huge", True)], columns("first"), columns("retyped"), known)[0].faults
        for known in ({}, {"taps_hours": Analysed("another release")}, {"taps_hours": Analysed("of_huge")})
    ]
    unverified = ("taps_hours.sql:1 reads huge of silver.taps, boolean → string",)
    assert found == [unverified, unverified, ()]


def test_a_table_that_a_release_no_longer_has_is_missed_by_its_readers() -> None:
    (effect,) = effects_on([reading("of_huge", True)], columns("first"), {}, {})
    assert "taps_hours.sql:1 reads huge of silver.taps, a table that would no longer exist" in effect.faults
