"""The direction of imports: a package imports only itself and the packages listed for it here.

An import that fails here is in the wrong place, or the table is to be changed, with its reason, in the same commit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest
from source_tree import Module, code, imports, modules

OURS = ("include", "spark_jobs", "infra", "dags", "tests", "headrace_airflow")
ROOMS = ("include.ground", "include.declare", "include.state", "include.read", "include.plans", "include.audit")
ROOMS += ("include.observe", "include.run", "include.change", "include.serve", "include.cli")
"""The rooms of the control plane: each may import those before it, but for what the table withholds."""


def before(room: str, *withheld: str) -> tuple[str, ...]:
    return tuple(each for each in ROOMS[: ROOMS.index(room)] if each not in withheld)


# Package → the packages it may import, and its purpose: the line to read when an import is refused.
PACKAGES: dict[str, tuple[tuple[str, ...], str]] = {
    "include.ground": ((), "settings, paths, errors, clients, the machine; knows no dataset and no table of ours"),
    "include.declare": (before("include.declare"), "reads declarations; contacts nothing outside"),
    "include.state": (before("include.state"), "typed files of the state folder, and who owns them; starts nothing"),
    "include.read": (
        ("include.ground", "include.state.json_file"),
        "reads what is published, and moves it; never what was declared",
    ),
    "include.plans": (before("include.plans"), "plans as files; changes no history"),
    "include.audit": (
        (*before("include.audit", "include.state", "include.plans"), "include.state.json_file"),
        "counts from outside; an error shared with the writer of a table could not be found",
    ),
    "include.observe": (before("include.observe"), "what is the case, and what has been; never acts"),
    "include.run": (before("include.run", "include.audit"), "keeps processes running; computes no rows"),
    "include.change": (before("include.change", "include.audit"), "plans changes of history, validates whole tables"),
    "include.serve": (
        before("include.serve", "include.run") + ("include.run.log_trimming", "include.audit"),
        "pages in a browser and the API; decides by the functions of include.change, computes no rows",
    ),
    "include.cli": (
        before("include.cli"),
        "wires the control plane; starts drivers as processes, never imports one",
    ),
    "include.api": (
        before("include.observe", "include.audit") + ("include.observe",),
        "what Python programs call; never acts",
    ),
    "include.producers": (
        ("include.ground", "include.declare", "include.state", "include.cli"),
        "makes events; knows no table",
    ),
    "include.datasets": ((), "transformations: pyspark and the standard library only"),
    "spark_jobs.contract": (
        ("include.ground", "include.declare"),
        "contract to Spark columns; knows neither tables nor stream",
    ),
    "spark_jobs.tables": (
        ("include.ground", "include.read.memory_database", "include.state.json_file", "spark_jobs.contract"),
        "tables and checkpoints; knows no layer or dataset",
    ),
    "spark_jobs.layers": (
        ("include.ground", "include.declare", "include.read", "include.state.json_file")
        + ("spark_jobs.contract", "spark_jobs.tables"),
        "how a layer is written; knows neither where records come from nor when to stop",
    ),
    "spark_jobs.backends": (
        (*before("include.plans"), "spark_jobs.layers", "spark_jobs.contract", "spark_jobs.tables"),
        "where rows are computed; decides neither when, what nor whether",
    ),
    "spark_jobs.history": (
        (
            *before("include.audit"),
            "spark_jobs.backends",
            "spark_jobs.layers",
            "spark_jobs.contract",
            "spark_jobs.tables",
        ),
        "history recomputed; knows no stream",
    ),
    "spark_jobs.stream": (
        (*before("include.audit"), "include.observe", "spark_jobs.history", "spark_jobs.backends")
        + ("spark_jobs.layers", "spark_jobs.contract", "spark_jobs.tables"),
        "what the owner of the tables does: ingest, refine, patch, compact",
    ),
    "spark_jobs.jobs": (
        (*before("include.audit"), "include.observe", "spark_jobs"),
        "the processes: arguments, leases, exit codes",
    ),
    "infra": (("include.ground",), "sets up the machine; drives the stack"),
    "dags": (("headrace_airflow",), "WHEN: no logic"),
    "airflow_package": (("headrace_airflow",), "any Airflow, which need not have our packages: it speaks the API"),
}
NO_PRODUCT = ("tests", "benchmarks", "workloads", "demo", "stack_tools")
OUTSIDE = {
    "jinja2": (("include.ground",), "templates are rendered in one place, which escapes every value"),
    "fastapi": (("include.serve", "airflow_package"), "web pages are the console's, and Airflow's plugin's"),
    "uvicorn": (("include.ground.http_server",), "a server of our own bounds its clients: serve_application()"),
    "pyspark": (
        ("spark_jobs", "include.datasets"),
        "Spark is the data plane's; ask a driver, or read with polars",
    ),
    "delta": (("spark_jobs",), "delta-spark belongs to the data plane"),
    "airflow": (
        ("dags", "airflow_package"),
        "Airflow is only an adapter; it speaks the API, logic goes to include.change",
    ),
    "confluent_kafka": (
        ("include.ground", "include.producers", "infra.kafka"),
        "use include.ground.kafka; only who produces, measures or sets up a broker has an own client",
    ),
    "py4j": (("spark_jobs", "include.audit"), "a JVM is Spark's, or the audit's consumer (include/audit/adr-0002)"),
    "obstore": (("include.ground",), "use include.ground.object_store"),
    "psycopg": (
        ("include.audit.source", "tests.cdc"),
        "use SQLAlchemy; a mirrored database is read as psycopg reads it",
    ),
    "sqlalchemy": (("include.observe", "include.state.lease_table"), "databases are the ledger's and the leases'"),
    "openlineage": (("include.observe", "include.cli"), "events are made and sent in one place"),
    "prometheus_client": (("include.observe", "include.cli"), "figures are collected in one place"),
    "great_expectations": (("include.change",), "slow to load: for the processes that run checkpoints"),
    "typer": (
        ("include.cli", "include.producers"),
        "the command line only wires; return values and raise typed errors",
    ),
    "rich": (
        ("include.cli", "include.producers", "include.observe", "infra"),
        "return values; the command line shows them",
    ),
}


def inside(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def package_of(name: str) -> str:
    """The innermost package of a module."""
    return max((package for package in PACKAGES if inside(name, [package])), key=len, default=name)


def complaint(module: Module, line: int, target: str) -> str | None:
    """Why this import may not be; None where it may."""
    package = package_of(module.name)
    if package not in PACKAGES:
        return f"{module.path}: {module.name} is in no package of PACKAGES; say what it is for and what it may import"
    allowed, purpose = PACKAGES[package]
    if target.split(".")[0] not in OURS or inside(target, (package, *allowed)):
        return None
    return (
        f"{module.path}:{line} imports {target}. {package} ({purpose}) may import "
        f"{', '.join(allowed) or 'nothing of ours'}; move what needs it to a package above both, or pass it in"
    )


def test_packages_import_only_what_the_table_allows() -> None:
    found = {complaint(m, line, target) for m in code() if m.path.count("/") for line, target in imports(m)}
    assert sorted(text for text in found if text) == []


def test_every_package_of_the_table_exists() -> None:
    empty = {package for package in PACKAGES if not any(inside(module.name, [package]) for module in code())}
    assert empty == set()


def test_import_table_has_no_cycle() -> None:
    """Packages that may import each other in a circle would be one package."""
    reach = {
        package: {r for r in PACKAGES if r != package and inside(r, allowed)}
        for package, (allowed, _) in PACKAGES.items()
    }
    for _ in PACKAGES:
        reach = {package: seen.union(*(reach[r] for r in seen)) for package, seen in reach.items()}
    circles = {package for package, seen in reach.items() if package in seen}
    assert circles == set()


def test_production_imports_no_tests() -> None:
    assert [m.path for m in code() for _, target in imports(m) if inside(target, NO_PRODUCT)] == []


@pytest.mark.parametrize("package", OUTSIDE)
def test_third_party_packages_are_imported_where_allowed(package: str) -> None:
    packages, remedy = OUTSIDE[package]
    strays = [
        f"{m.path}:{line} imports {target}: {remedy}"
        for m in code()
        for line, target in imports(m)
        if inside(target, [package]) and not inside(m.name, packages)
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


def test_transformations_are_never_imported() -> None:
    """Releases load them from a snapshot (spark_jobs.backends.release); an import would run the clone's code."""
    strays = [
        f"{m.path}:{line}"
        for m in modules()
        for line, name in imports(m)
        if inside(name, ["include.datasets", "workloads.datasets"])
    ]
    assert strays == []


def test_product_imports_no_producers() -> None:
    strays = [
        f"{m.path}:{line} imports {target}: name the command in include/cli/main.py's table instead"
        for m in code()
        if not inside(m.name, ["include.producers"])
        for line, target in imports(m)
        if inside(target, ["include.producers"])
    ]
    assert strays == []
