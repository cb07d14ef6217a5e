"""`headrace`: the command line's entry point."""

from __future__ import annotations

import os
import sys

import typer
from rich.console import Console
from rich.markup import escape

from include.cli.exit_codes import INTERRUPTED
from include.cli.lazy_group import LazyCommand, LazyGroup
from include.ground.errors import HeadraceError

# Demo, workloads, benchmarks and producers are named only here: nothing in the product imports them.
COMMANDS = {
    "demo": LazyCommand(
        "include.demo.command:demo",
        "Run the flights of 2013, with injected faults, from Kafka to gold; then queries, score, audit.",
    ),
    "demo-change": LazyCommand(
        "include.demo.change:demo_change",
        "Change the demo's flights while the feed runs: ship a release, compare, publish, roll back, replay.",
    ),
    "demo-workloads": LazyCommand(
        "workloads.command:demo_workloads",
        "Run known workloads of stream processors from Kafka to gold, and compare each table with an oracle.",
    ),
    "airflow": LazyCommand(
        "include.cli.airflow_command:airflow",
        "Run a command of Airflow, such as `backfill create …` or `dags list`, with the settings of this state folder.",
        passes_on=True,
    ),
    "bench": LazyCommand(
        "benchmarks.command:app", "Measure the platform on this machine, in state folders of its own."
    ),
    "produce": LazyCommand(
        "include.producers.command:produce",
        "Send a feed's events to its topic, optionally with duplicate, late, reordered, corrupt records; or a file's.",
    ),
    "new": LazyCommand(
        "include.cli.new_command:new",
        "Write the folder of a new dataset, inferred from a sample: contract, pipeline, silver.py, gold, a case.",
    ),
    "try": LazyCommand(
        "include.cli.try_command:try_sample",
        "Run a folder's contract, silver.py and gold over sample records: accepted, rejected with reasons, gold rows.",
    ),
    "doctor": LazyCommand(
        "include.cli.doctor_command:doctor",
        "Check Java, Python, jars, ports, disk, memory, settings; exit code 1 when a check fails.",
    ),
    "up": LazyCommand(
        "include.cli.up_command:up",
        "Start the broker and the streams under a runner and wait until they work; with --airflow, start Airflow too.",
    ),
    "down": LazyCommand(
        "include.cli.up_command:down",
        "Stop Airflow, jobs, streams, broker and runner; or only jobs and streams of DATASETS. Streams finish a batch.",
    ),
    "status": LazyCommand(
        "include.cli.status_command:status",
        "Show processes, batches, rates, lag, rows per layer and rejected records by reason.",
    ),
    "console": LazyCommand(
        "include.cli.console_command:console",
        "Serve the console: streams, tables, plans, quality; logged-in users decide on plans. `up` starts it too.",
    ),
    "wait": LazyCommand(
        "include.cli.status_command:wait",
        "Wait until everything readable in Kafka is published; exit 1 at the timeout or when waiting cannot help.",
    ),
    "query": LazyCommand(
        "include.cli.query_command:query",
        "Query the published tables in SQL (DuckDB, UTC), all pinned to the versions of one publication.",
    ),
    "tables": LazyCommand(
        "include.cli.query_command:tables",
        "List the published tables: rows, size, files, version and batch, from their Delta logs.",
    ),
    "explain": LazyCommand(
        "include.cli.origin_command:explain",
        "Show the Kafka records behind a row of gold: partitions, offsets and batches, optionally payloads.",
    ),
    "lineage": LazyCommand(
        "include.cli.origin_command:lineage",
        "Show the lineage of tables: topic, bronze, silver, rejected and gold of each dataset.",
    ),
    "analysis": LazyCommand(
        "include.cli.analysis_command:app", "Analyses: iterative and learning jobs over published tables."
    ),
    "metrics": LazyCommand(
        "include.cli.metrics_command:metrics",
        "Serve metrics of streams, tables, plans, processes for Prometheus; `up` does so with HEADRACE_METRICS=on.",
    ),
    "alerts": LazyCommand(
        "include.cli.metrics_command:alerts",
        "Evaluate the alert conditions, and deliver each change once: firing, later resolved. Needs no Prometheus.",
    ),
    "openlineage": LazyCommand(
        "include.cli.openlineage_command:openlineage",
        "Send the runs of streams, plans and analyses as OpenLineage events; `up` does so too when a receiver is set.",
    ),
    "audit": LazyCommand(
        "include.cli.audit_command:audit",
        "Compare Kafka, bronze, silver, rejected and gold independently. Exit 0 balanced, 1 not, 2 not fully audited.",
    ),
    "rejected": LazyCommand(
        "include.cli.decision_commands:app", "Records that are not in silver: list, fix, discard, reinstate."
    ),
    "contract": LazyCommand(
        "include.cli.contract_command:app", "Contracts: check the declared rules of records and tables."
    ),
    "quality": LazyCommand("include.cli.quality_command:app", "Data quality: rule violations, table rules, drift."),
    "release": LazyCommand(
        "include.cli.release_command:app", "Ship a changed dataset folder: build, compare, publish."
    ),
    "backfill": LazyCommand(
        "include.cli.slice_commands:backfill", "Recompute the events of a range of time, and verify or patch them."
    ),
    "replay": LazyCommand(
        "include.cli.slice_commands:replay", "Recompute Kafka records, and insert those that bronze lacks."
    ),
    "plan": LazyCommand("include.cli.plan_command:app", "Plans: change history, from planning to rollback."),
    "grains": LazyCommand(
        "include.cli.grains_command:grains",
        "Show which windows and sessions of gold are open (early), closed (on time), corrected or verified.",
    ),
    "reference": LazyCommand(
        "include.cli.reference_command:app", "Reference tables that events are joined with: list, load."
    ),
    "ledger": LazyCommand(
        "include.cli.ledger_command:app", "The ledger: an index of the Delta commits, batch by batch."
    ),
    "maintain": LazyCommand(
        "include.cli.maintain_command:maintain",
        "Compact all tables, delete old files, releases and plan rows, trim logs; exit 1 when a dataset was skipped.",
    ),
    "storage": LazyCommand(
        "include.cli.storage_command:storage",
        "Show bytes by dataset, release and table: current files, replaced ones, logs, and what is deleted next.",
    ),
    "repair": LazyCommand(
        "include.cli.repair_command:repair",
        "Roll back tables that lost commits, replace an unusable checkpoint, rebuild the index of identities.",
    ),
    "restore": LazyCommand(
        "include.cli.restore_command:restore",
        "Fetch a dataset's published tables from the object store, and continue from there.",
    ),
    "settings": LazyCommand(
        "include.cli.settings_command:settings",
        "List every setting: variable, value, where it comes from, default, meaning; exit code 2 when one is invalid.",
    ),
}


class Headrace(LazyGroup):
    """All commands of `headrace`."""

    commands_by_name = COMMANDS


app = typer.Typer(cls=Headrace, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


# They read files that have other names in earlier versions; `up` renames them too.
NEEDS_CURRENT_STATE = {"backfill", "demo-change", "maintain", "plan", "rejected", "release", "repair", "replay"}


@app.callback()
def headrace(context: typer.Context) -> None:
    """Kafka to Delta, every record accounted for."""
    if context.invoked_subcommand not in NEEDS_CURRENT_STATE or "--help" in sys.argv:
        return
    # Imported here: the settings library doubles the time of `headrace --help`.
    from include.ground.settings import load_settings
    from include.state.migrate_state import migrate_state

    for line in migrate_state(load_settings()):
        Console(stderr=True, soft_wrap=True).print(f"state: renamed {escape(line)}", highlight=False)


def main() -> None:
    """Run the command line; a HeadraceError becomes a message on stderr and exit code 2, Ctrl-C in a query 130."""
    # Files of the state folder may hold payloads and settings: they are for this user only.
    os.umask(0o077)
    try:
        app()
    except HeadraceError as error:
        shown = escape(str(_with_known_datasets(error)))
        Console(stderr=True, soft_wrap=True).print(f"[bold red]headrace:[/] {shown}", highlight=False)
        sys.exit(2)
    except RuntimeError as error:
        # DuckDB raises this for Ctrl-C.
        if str(error) != "Query interrupted":
            raise
        sys.exit(INTERRUPTED)


def _with_known_datasets(error: HeadraceError) -> HeadraceError:
    """Return DatasetUnknown, with all datasets, for a name that no folder declares: a typing error."""
    from include.declare.dataset import DatasetUnknown
    from include.declare.derived_dataset import all_dataset_names
    from include.ground.settings import load_settings
    from include.read.publication import NothingPublished

    if isinstance(error, NothingPublished):
        name, others = error.dataset, list[str]()
    elif isinstance(error, DatasetUnknown):
        name, others = error.name, error.known
    else:
        return error
    known = sorted({*all_dataset_names(load_settings()), *others})
    return error if name in known else DatasetUnknown(name, known)


if __name__ == "__main__":
    main()
