"""The direction of imports: a package imports only itself and the packages listed for it here.

An import that fails here is in the wrong place, or the table is to be changed, with its reason, in the same commit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import pytest
from source_tree import Module, code, imports, modules

OURS = ("include", "spark_jobs", "infra", "dags", "tests", "headrace_airflow")
GROUND = (
    *("include.durable_files", "include.errors", "include.secret_masking", "include.settings", "include.paths"),
    "include.setting_list",
    *("include.strict_values", "include.sql_quoting", "include.kafka_address", "include.password_file"),
    *("include.kafka_times", "include.record_coordinates", "include.settings_profiles"),
    *("include.app_ids", "include.commit_guard", "include.process_folder", "include.optional_packages"),
)
LOW = (*GROUND, "include.host", "include.state", "include.leases")
TABLES = ("include.catalog", "include.clients", "include.reading", "include.ledger")
READERS = (*TABLES, "include.plans")
# Package → the packages it may import, and its purpose: the line to read when an import is refused.
PACKAGES: dict[str, tuple[tuple[str, ...], str]] = {
    "include.process_folder": ((), "folders of temporary files of one process; knows no file in them"),
    "include.app_ids": ((), "names transactions of Delta logs; knows no table"),
    "include.commit_guard": ((), "what a process must still own to commit; knows no lease"),
    "include.durable_files": ((), "forces files to disk; knows no file's meaning"),
    "include.errors": (("include.secret_masking",), "the two ways to fail; knows nothing else"),
    "include.strict_values": ((), "parses what people type; knows no option and no form"),
    "include.optional_packages": (
        ("include.errors",),
        "imports packages that may be missing; knows none",
    ),
    "include.allowed_options": ((), "lists options that change no result; knows no setting's value"),
    "include.password_file": (("include.errors",), "reads passwords; knows no setting's value"),
    "include.kafka_address": ((), "how clients reach Kafka; knows no setting and no topic"),
    "include.kafka_times": ((), "the times that bronze holds; knows no table"),
    "include.record_coordinates": ((), "names the columns of a record's coordinates; knows no table"),
    "include.sql_quoting": ((), "quotes names and literals of SQL; knows no table"),
    "include.secret_masking": ((), "masks secrets in any text; knows no setting"),
    "include.settings": (
        ("include.allowed_options", "include.errors", "include.secret_masking", "include.settings_profiles"),
        "reads the environment",
    ),
    "include.settings_profiles": ((), "what a profile sets, and why; reads nothing"),
    "include.setting_list": (
        ("include.secret_masking", "include.settings", "include.settings_profiles"),
        "shows settings and where each value comes from; reads no other value",
    ),
    "include.paths": (
        ("include.errors", "include.password_file", "include.settings"),
        "names paths, none outside the state folder",
    ),
    "include.host": (GROUND, "the machine: Java, jars, ports; knows no dataset"),
    "include.state": ((*GROUND, "include.host", "include.catalog"), "typed files of the state folder; starts nothing"),
    "include.leases": (
        (*GROUND, "include.host", "include.state"),
        "who owns tables and supervision; knows neither a table nor a process's work",
    ),
    "include.catalog": (GROUND, "reads declarations; contacts nothing outside"),
    "include.clients": (GROUND, "the outside behind small functions; knows no dataset and no table of ours"),
    "include.rendering": ((), "renders templates as HTML and Markdown; knows no dataset"),
    "include.store": (
        (*GROUND, "include.clients", "include.state.json_file"),
        "the object store's copy of what is published; knows no layer",
    ),
    "include.reading": (
        (*GROUND, "include.clients", "include.host.process_end", "include.store"),
        "reads what is published, and moves it; never what was declared",
    ),
    "include.reference": (
        (*GROUND, "include.catalog", "include.clients"),
        "reference tables; knows nothing of batches",
    ),
    "include.schemas": (
        (*GROUND, "include.catalog", "include.clients"),
        "schemas of payloads: kept, read, compared with contracts; computes no rows",
    ),
    "include.scaffold": (
        (*GROUND, "include.catalog", "include.clients"),
        "infers a new dataset's folder from a sample; changes no folder that exists",
    ),
    "include.ledger": (
        (*GROUND, "include.state", "include.clients", "include.reading", "include.catalog"),
        "index over the commits",
    ),
    "include.plans": ((*LOW, *TABLES), "plans as files, and the data that ended ones leave; changes no history"),
    "include.producers": (
        (*LOW, "include.catalog", "include.clients", "include.cli", "include.schemas", "include.strict_values"),
        "makes events; knows no table",
    ),
    "include.audit": (
        (
            *GROUND,
            "include.host",
            "include.catalog",
            "include.clients",
            "include.reading",
            "include.schemas",
            "include.state.json_file",
        ),
        "counts from outside; an error shared with the writer of a table could not be found",
    ),
    "include.status": ((*LOW, *READERS), "one model of current state; never acts"),
    "include.api": (
        (*LOW, *READERS, "include.status"),
        "what Python programs call; reads, never acts",
    ),
    "include.metrics": (
        (*LOW, *READERS, "include.audit.audit_outcome", "include.status"),
        "figures for Prometheus and alerts; never acts",
    ),
    "include.lineage_events": (
        (*LOW, *READERS, "include.quality.validation_history", "include.status"),
        "what is recorded, as OpenLineage events; never acts",
    ),
    "include.process_control": ((*LOW, *READERS, "include.status"), "keeps processes running; computes no rows"),
    "include.doctor": (
        (*LOW, "include.catalog", "include.clients", "include.status", "include.store"),
        "checks the machine",
    ),
    "include.planning": (
        (*LOW, *READERS, "include.reference", "include.rendering", "include.schemas", "include.status")
        + ("include.process_control",),
        "plans changes of history",
    ),
    "include.quality": (
        (*GROUND, *READERS, "include.planning", "include.reference", "include.rendering", "include.schemas"),
        "validates whole tables, in a process of its own; reports what rules counted",
    ),
    "include.maintenance": (
        (*LOW, *READERS, "include.planning", "include.status"),
        "requests compaction from the owners of tables, trims logs; between plans",
    ),
    "include.analysis": (
        (*LOW, *READERS, "include.planning"),
        "iterative jobs over published tables; writes no table of a dataset",
    ),
    "include.console": (
        (*LOW, *READERS, "include.audit", "include.status", "include.planning", "include.quality", "include.rendering")
        + ("include.schemas",),
        "pages in a browser; decides by the functions of include.planning, computes no rows",
    ),
    "include.operators": (
        (
            *(*LOW, *READERS, "include.audit", "include.status", "include.process_control", "include.planning"),
            *("include.quality", "include.maintenance", "include.analysis"),
        ),
        "thin Airflow adapters",
    ),
    "include.demo": (
        (*LOW, *READERS, "include.audit", "include.doctor", "include.producers", "include.status")
        + ("include.process_control", "include.planning", "include.cli", "include.strict_values"),
        "the story that `make demo` runs",
    ),
    "include.workloads": (
        (*LOW, *READERS, "include.audit", "include.cli", "include.process_control", "include.producers")
        + ("include.analysis", "include.planning", "include.rendering", "include.status"),
        "known workloads and their oracles; an oracle imports nothing of the platform",
    ),
    "include.bench": (
        (*LOW, *READERS, "include.audit", "include.producers", "include.planning", "include.status")
        + ("include.process_control", "include.cli", "include.rendering", "include.workloads"),
        "measures the platform from outside, through the packages that every command uses",
    ),
    "include.bench.peers": ((), "hand-written jobs, measured next to the platform: they use nothing of it"),
    "include.cli": (
        (*LOW, *READERS, "include.audit", "include.doctor", "include.maintenance", "include.planning")
        + (
            "include.process_control",
            "include.analysis",
            "include.metrics",
            "include.lineage_events",
            "include.quality",
            "include.console",
            "include.reference",
            "include.scaffold",
            "include.schemas",
            "include.status",
            "include.strict_values",
        ),
        "wires the control plane; starts drivers as processes, never imports one",
    ),
    "include.workloads.datasets": ((), "transformations: pyspark and the standard library only"),
    "include.datasets": ((), "transformations: pyspark and the standard library only"),
    "spark_jobs.jvm_end": (
        ("include.errors", "include.host.process_end"),
        "why the JVM of this process ended; knows nothing of what it did",
    ),
    "spark_jobs.log_lines": (
        ("include.errors", "spark_jobs.jvm_end"),
        "lines of a driver's log; knows nothing of what they say",
    ),
    "spark_jobs.java_class": ((), "compiles Java for Spark's tasks; knows no class"),
    "spark_jobs.literals": ((), "Python values as Spark's literals"),
    "spark_jobs.storage": (
        (
            *(*GROUND, "spark_jobs.log_lines", "spark_jobs.java_class"),
            *("include.clients.delta_log", "include.reading.memory_database"),
            *("include.clients.commit_history", "include.clients.file_checksum", "include.clients.table_files"),
            "include.state.json_file",
        ),
        "tables and checkpoints; knows no layer or dataset",
    ),
    "spark_jobs.contract": (
        (
            *("include.catalog", "include.clients.schema_registry", "include.schemas"),
            *("include.kafka_times", "spark_jobs.java_class", "spark_jobs.literals"),
        ),
        "contract to Spark columns; knows neither tables nor stream",
    ),
    "spark_jobs.layers": (
        (
            *(*GROUND, "include.catalog", "include.clients", "include.reading", "include.reference"),
            *("include.schemas", "include.state.json_file", "spark_jobs.contract", "spark_jobs.literals"),
            "spark_jobs.storage",
        ),
        "how a layer is written; knows neither where records come from nor when to stop",
    ),
    "spark_jobs.engine": (
        (
            *(*LOW, *READERS, "include.reference", "include.store"),
            *("spark_jobs.layers", "spark_jobs.contract", "spark_jobs.literals", "spark_jobs.storage"),
            *("spark_jobs.jvm_end", "spark_jobs.log_lines"),
        ),
        "what the owner of the tables does: ingest, refine, patch, compact",
    ),
    "spark_jobs.jobs": (
        (*LOW, *READERS, "include.reference", "include.store", "spark_jobs"),
        "the processes: arguments, leases, exit codes",
    ),
    "infra": (
        (*GROUND, "include.host", "include.clients.airflow_rest", "include.clients.schema_registry"),
        "sets up the machine; drives the stack",
    ),
    "dags": (("include.operators", "include.settings"), "WHEN: no logic"),
    "airflow_package": (("headrace_airflow",), "an Airflow elsewhere, which has none of our packages"),
}
OUTSIDE = {
    "jinja2": (("include.rendering",), "templates are rendered in one place, which escapes every value"),
    "fastapi": (("include.console", "include.operators"), "web pages are the console's, and Airflow's plugin's"),
    "uvicorn": (("include.host.http_server",), "a server of our own bounds its clients: serve_application()"),
    "pyspark": (
        ("spark_jobs", "include.datasets", "include.workloads.datasets", "include.bench.peers"),
        "Spark is the data plane's; ask a driver, or read with polars",
    ),
    "delta": (("spark_jobs", "include.bench.peers"), "delta-spark belongs to the data plane"),
    "airflow": (
        ("dags", "include.operators", "airflow_package"),
        "Airflow is only an adapter; logic goes to include.planning",
    ),
    "confluent_kafka": (
        ("include.clients", "include.producers", "include.bench", "infra.kafka"),
        "use include.clients.kafka; only who produces, measures or sets up a broker has an own client",
    ),
    "py4j": (("spark_jobs", "include.audit"), "a JVM is Spark's, or the audit's consumer (include/audit/adr-0002)"),
    "obstore": (("include.clients",), "use include.clients.object_store"),
    "psycopg": (("include.leases",), "the other database is the ledger's; use include.ledger.ledger_reader"),
    "sqlalchemy": (("include.ledger",), "the database is the ledger's; use include.ledger.ledger_reader"),
    "openlineage": (("include.lineage_events", "include.cli"), "events are made and sent in one place"),
    "prometheus_client": (("include.metrics", "include.cli"), "figures are collected in one place"),
    "great_expectations": (("include.quality",), "slow to load: for the processes that run checkpoints"),
    "typer": (
        ("include.cli", "include.demo", "include.bench", "include.producers", "include.workloads"),
        "the command line only wires; return values and raise typed errors",
    ),
    "rich": (
        ("include.cli", "include.bench", "include.demo", "include.producers", "include.workloads", "include.doctor")
        + ("infra",),
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
    assert [m.path for m in code() for _, target in imports(m) if inside(target, ["tests"])] == []


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
    """Releases load them from a snapshot (spark_jobs.layers.release_tables); an import would run the clone's code."""
    strays = [
        f"{m.path}:{line}"
        for m in modules()
        for line, name in imports(m)
        if inside(name, ["include.datasets", "include.workloads.datasets"])
    ]
    assert strays == []


@pytest.mark.parametrize("package", ["include.demo", "include.bench", "include.producers", "include.workloads"])
def test_product_imports_neither_demo_nor_benchmarks_nor_producers(package: str) -> None:
    users = ("include.demo", "include.bench", "include.producers", "include.workloads")
    strays = [
        f"{m.path}:{line} imports {target}: name the command in include/cli/main.py's table instead"
        for m in code()
        if not inside(m.name, users)
        for line, target in imports(m)
        if inside(target, [package])
    ]
    assert strays == []
