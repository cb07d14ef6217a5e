"""The direction of imports (DESIGN §9): a room may import the rooms it is given here, itself, and nothing else of ours.

An import that fails here is in the wrong place, or the table is to be changed, with its reason, in the same commit.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable

import pytest
from source_tree import Module, code, imports, modules

OURS = ("include", "spark_jobs", "infra", "dags", "tests")
GROUND = ("include.errors", "include.settings", "include.places")
JUDGE = ("include.catalog", "include.clients", "include.reading", "include.ledger")
# Room → the rooms it may import, and what it is for: the line that tells where a refused import belongs.
ROOMS: dict[str, tuple[tuple[str, ...], str]] = {
    "include.errors": ((), "the two ways to fail; knows nothing"),
    "include.settings": (("include.errors",), "reads the environment"),
    "include.places": (("include.settings",), "names paths"),
    "include.catalog": (GROUND, "reads declarations; asks nobody outside"),
    "include.clients": (GROUND, "the outside behind small functions; knows no dataset and no table of ours"),
    "include.reading": ((*GROUND, "include.clients"), "reads what is published; never what was declared"),
    "include.reference": (
        (*GROUND, "include.catalog", "include.clients"),
        "tables that do not flow; knows nothing of batches",
    ),
    "include.ledger": ((*GROUND, "include.clients", "include.reading", "include.catalog"), "intended and seen"),
    "include.feeds": ((*GROUND, "include.clients"), "makes events; must not know what becomes of them"),
    "include.audit": (
        (*GROUND, "include.catalog", "include.clients", "include.reading"),
        "counts from outside; what it shared with the writer of a table, it could not find wrong there",
    ),
    "include.supervision": ((*GROUND, *JUDGE), "keeps processes running; computes no rows"),
    "include.doctor": ((*GROUND, "include.supervision"), "looks at the machine"),
    "include.planning": ((*GROUND, *JUDGE, "include.reference", "include.supervision"), "plans changes of history"),
    "include.quality": (
        (*GROUND, *JUDGE, "include.planning"),
        "asks whole tables, in a process of its own; reports what rules counted",
    ),
    "include.operators": (
        (
            *(*GROUND, *JUDGE, "include.audit", "include.supervision", "include.planning"),
            *("include.quality", "include.maintenance"),
        ),
        "thin Airflow adapters",
    ),
    "include.maintenance": (
        (*GROUND, *JUDGE, "include.planning", "include.supervision"),
        "asks the owners of tables, and looks after logs; between plans",
    ),
    "include.demo": (
        (*GROUND, *JUDGE, "include.audit", "include.doctor", "include.feeds", "include.supervision"),
        "the story that `make demo` tells",
    ),
    "include.bench": (
        (*GROUND, *JUDGE, "include.audit", "include.demo", "include.feeds", "include.planning", "include.supervision"),
        "measures the platform from outside, by the rooms that every command uses",
    ),
    "include.cli": (("include",), "wires the control plane; starts drivers as processes, never imports one"),
    "include.datasets": ((), "transformations: pyspark and the standard library only"),
    "spark_jobs.failpoints": ((), "places to die; knows nothing"),
    "spark_jobs.telling": (("include.errors",), "writes one small file"),
    "spark_jobs.session": (("include.errors", "include.settings"), "the way to a Spark session"),
    "spark_jobs.data_files": ((), "a table's files; knows neither layers nor datasets"),
    "spark_jobs.tables": (
        ("include.errors", "spark_jobs.data_files"),
        "how a table is written; knows neither layers nor datasets",
    ),
    "spark_jobs.contract": (("include.catalog",), "contract to Spark columns; knows neither tables nor stream"),
    "spark_jobs.layers": (
        (
            *(*GROUND, "include.catalog", "include.clients.delta_log", "include.reading.sql", "include.reference"),
            "include.reading.amendments",
            *("spark_jobs.contract", "spark_jobs.tables", "spark_jobs.data_files", "spark_jobs.failpoints"),
        ),
        "how a layer is written; knows neither where records come from nor when to stop",
    ),
    "spark_jobs": (
        (*GROUND, *JUDGE, "include.reference", "include.supervision", "spark_jobs"),
        "the jobs: reading, refining, publishing, in one process",
    ),
    "infra": ((*GROUND, "include.supervision"), "sets up the machine"),
    "dags": (("include.operators", "include.settings"), "WHEN: no logic"),
}
# Import by import: the whole room must not be open for it.
ONLY: dict[tuple[str, str], tuple[str, ...]] = {
    ("spark_jobs", "include.supervision"): (
        *("bootstrap_servers", "find_java", "stream_name", "write_atomically"),
        *(
            "PROMOTE",
            "RETIRE",
            "CORRECT",
            "UNDO",
            "MAINTAIN",
            "Answer",
            "Order",
            "OrderUnreadable",
            "find_order",
            "give_answer",
            "withdraw_order",
        ),
    ),
}
OUTSIDE = {
    "pyspark": (
        ("spark_jobs", "include.datasets"),
        "Spark is the data plane's; ask a driver, or read with polars",
    ),
    "delta": (("spark_jobs",), "delta-spark belongs to the data plane"),
    "airflow": (("dags", "include.operators"), "Airflow is only an adapter; logic goes to include.planning"),
    "confluent_kafka": (
        ("include.clients", "include.feeds", "include.audit", "include.bench"),
        "use include.clients.kafka; only who produces, or counts from outside, has a client of its own",
    ),
    "sqlalchemy": (("include.ledger",), "the database is the ledger's; use include.ledger.reader"),
    "great_expectations": (("include.quality",), "slow to load: for the processes that run checkpoints"),
    "typer": (("include.cli",), "the command line only wires; return values and raise typed errors"),
    "rich": (
        ("include.cli", "include.bench", "include.demo", "include.doctor", "infra"),
        "return values; the command line shows them",
    ),
}


def inside(name: str, rooms: Iterable[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def room_of(name: str) -> str:
    """The innermost room of a module."""
    return max((room for room in ROOMS if inside(name, [room])), key=len, default=name)


def complaint(module: Module, line: int, target: str) -> str | None:
    """Why this import may not be; None where it may."""
    room = room_of(module.name)
    if room not in ROOMS:
        return f"{module.path}: {module.name} is in no room of ROOMS; say what it is for and what it may import"
    allowed, purpose = ROOMS[room]
    if target.split(".")[0] not in OURS or inside(target, (room, *allowed)):
        return None
    return (
        f"{module.path}:{line} imports {target}. {room} ({purpose}) may import "
        f"{', '.join(allowed) or 'nothing of ours'}; move what needs it to a room above both, or pass it in"
    )


def test_imports_go_one_way() -> None:
    found = {complaint(m, line, target) for m in code() if m.path.count("/") for line, target in imports(m)}
    assert sorted(text for text in found if text) == []


def test_every_room_is_there_or_planned() -> None:
    planned = {"include.planning", "include.demo"}
    empty = {room for room in ROOMS if not any(inside(module.name, [room]) for module in code())}
    assert empty <= planned


def test_the_table_has_no_circle() -> None:
    """A room that may import a room that may import it could not be told apart from it."""
    reach = {room: {r for r in ROOMS if r != room and inside(r, allowed)} for room, (allowed, _) in ROOMS.items()}
    for _ in ROOMS:
        reach = {room: seen.union(*(reach[r] for r in seen)) for room, seen in reach.items()}
    circles = {room for room, seen in reach.items() if room in seen}
    assert circles <= {"spark_jobs"}, "the jobs may import each other; their inner rooms may not import the jobs"


def test_no_module_of_production_imports_tests() -> None:
    assert [m.path for m in code() for _, target in imports(m) if inside(target, ["tests"])] == []


@pytest.mark.parametrize("package", OUTSIDE)
def test_packages_stay_in_their_rooms(package: str) -> None:
    rooms, remedy = OUTSIDE[package]
    strays = [
        f"{m.path}:{line} imports {target}: {remedy}"
        for m in code()
        for line, target in imports(m)
        if inside(target, [package]) and not inside(m.name, rooms)
    ]
    assert strays == []


def test_transformations_import_pyspark_and_the_standard_library_only() -> None:
    strays = [
        f"{m.path}:{line} imports {target}: a transformation must mean the same in every place it runs"
        for m in modules()
        if m.is_transformation
        for line, target in imports(m)
        if target.split(".")[0] not in {"pyspark", *sys.stdlib_module_names}
    ]
    assert strays == []


def test_nobody_imports_a_transformation() -> None:
    """They are loaded from the release's snapshot (spark_jobs.layers.release); an import would run the clone's."""
    strays = [f"{m.path}:{line}" for m in modules() for line, name in imports(m) if inside(name, ["include.datasets"])]
    assert strays == []


@pytest.mark.parametrize("importer_and_room", ONLY, ids=" → ".join)
def test_narrow_doors(importer_and_room: tuple[str, str]) -> None:
    """What comes through a door that is only ajar."""
    importer, room = importer_and_room
    names = {
        alias.name
        for module in code()
        if inside(module.name, [importer])
        for node in nodes_from(module, room)
        for alias in node.names
    }
    assert names <= set(ONLY[importer_and_room]), f"{importer} may take only {ONLY[importer_and_room]} from {room}"


def nodes_from(module: Module, room: str) -> list[ast.ImportFrom]:
    found = [node for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom)]
    return [node for node in found if inside(node.module or "", [room])]
