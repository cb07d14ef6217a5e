"""`headrace`: the entry point. A command's module is imported when the command runs, not when they are listed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_group

from include.ground.errors import HeadraceError, Refused, Terminal

FAILED = 1
"""The command worked and its result is negative: not balanced, not approved, not valid, not caught up."""
INTERRUPTED = 130
"""Ctrl-C, as shells report it."""


@dataclass(frozen=True)
class LazyCommand:
    """Where a command is, `module:attribute` (a function or a Typer app), and its line in the list of commands.

    `passes_on`: its arguments are those of another program, from the first word on.
    """

    target: str
    summary: str
    passes_on: bool = False

    def load(self, name: str) -> Any:
        """Import the module and return the command (its type is private to Typer)."""
        module, attribute = self.target.split(":")
        try:
            found = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name != module.split(".")[0]:
                raise
            raise Terminal(
                f"this installation has no `headrace {name}`; nothing was done", "run it in a clone"
            ) from error
        if isinstance(found, typer.Typer):
            group = get_group(found)
            group.name = name
            return with_known_values(group)
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        options = {"ignore_unknown_options": True, "allow_interspersed_args": False}
        app.command(name, context_settings=options if self.passes_on else None)(found)
        return with_known_values(get_command(app))


COMPLETES = "_HEADRACE_COMPLETE"
"""The variable by which a shell requests completion; Typer's name for it."""
SCRIPTS = {
    "bash": """_headrace() {
  local IFS=$'\\n'
  COMPREPLY=($(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" _HEADRACE_COMPLETE=complete_bash "$1"))
}
complete -o default -F _headrace headrace""",
    "zsh": """#compdef headrace
_headrace() {
  eval $(_TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _HEADRACE_COMPLETE=complete_zsh "${words[1]}")
}
compdef _headrace headrace""",
    "fish": """function _headrace
    set -lx _HEADRACE_COMPLETE complete_fish
    set -lx _TYPER_COMPLETE_FISH_ACTION $argv[1]
    set -lx _TYPER_COMPLETE_ARGS (commandline -cp)
    set -l words (commandline -opc)
    eval $words[1]
end
complete --command headrace --no-files --condition '_headrace is-args' --arguments '(_headrace get-args)'""",
}


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that reads the script.")],
) -> None:
    """Print a script for your shell that completes commands, options, datasets and plans."""
    typer.echo(SCRIPTS[shell])


def with_known_values(command: Any) -> Any:
    """Return the command; while a shell completes it, with the datasets and plans for its parameters of these names."""
    if COMPLETES in os.environ:
        for each in getattr(command, "commands", {}).values():
            with_known_values(each)
        for parameter in command.params:
            if find := KNOWN_VALUES.get(parameter.name):
                parameter._custom_shell_complete = _completing(find)
    return command


def _completing(find: Callable[[], Iterable[str]]) -> Callable[[Any, Any, str], list[str]]:
    return lambda _context, _parameter, begun: [name for name in find() if name.startswith(begun)]


def _datasets() -> Iterable[str]:
    from include.declare.derived_dataset import all_dataset_names
    from include.ground.settings import load_settings

    return all_dataset_names(load_settings())


def _plans() -> Iterable[str]:
    from include.ground.settings import load_settings
    from include.plans.lookup import newest_plans

    return [record.plan.id for record in newest_plans(load_settings(), 50).plans]


KNOWN_VALUES = {"dataset": _datasets, "datasets": _datasets, "plan": _plans}


class CommandStub(TyperCommand):
    """Stands for a command in the list of commands, in suggestions and in completion; loads it to parse arguments."""

    def __init__(self, name: str, declared: LazyCommand) -> None:
        super().__init__(name, help=declared.summary)
        self._declared = declared

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the loaded command, so that the stub itself is never invoked."""
        return self._declared.load(str(self.name)).make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """A group whose commands are the `commands_by_name` of a subclass, in that order."""

    commands_by_name: Mapping[str, LazyCommand] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: CommandStub(name, declared) for name, declared in self.commands_by_name.items()}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse text that is not UTF-8 here, for all commands: no file, table or query can hold it."""
        for text in args:
            if any("\ud800" <= character <= "\udfff" for character in text):
                ctx.fail(f"{text[:80]!r} is not UTF-8")
        return super().parse_args(ctx, args)


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
        "include.cli.up:airflow",
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
        "include.cli.folder:new",
        "Write the folder of a new dataset, inferred from a sample: contract, pipeline, silver.py, gold, a case.",
    ),
    "try": LazyCommand(
        "include.cli.folder:try_sample",
        "Run a folder's contract, silver.py and gold over sample records: accepted, rejected with reasons, gold rows.",
    ),
    "doctor": LazyCommand(
        "include.cli.up:doctor",
        "Check Java, Python, jars, ports, disk, memory, settings; exit code 1 when a check fails.",
    ),
    "up": LazyCommand(
        "include.cli.up:up",
        "Start the broker and the streams under a runner and wait until they work; with --airflow, start Airflow too.",
    ),
    "down": LazyCommand(
        "include.cli.up:down",
        "Stop Airflow, jobs, streams, broker and runner; or only jobs and streams of DATASETS. Streams finish a batch.",
    ),
    "status": LazyCommand(
        "include.cli.status:status",
        "Show processes, batches, rates, lag, rows per layer and rejected records by reason.",
    ),
    "console": LazyCommand(
        "include.cli.serving:console",
        "Serve the console: streams, tables, plans, quality; logged-in users decide on plans. `up` starts it too.",
    ),
    "wait": LazyCommand(
        "include.cli.status:wait",
        "Wait until everything readable in Kafka is published; exit 1 at the timeout or when waiting cannot help.",
    ),
    "query": LazyCommand(
        "include.cli.query:query",
        "Query the published tables in SQL (DuckDB, UTC), all pinned to the versions of one publication.",
    ),
    "tables": LazyCommand(
        "include.cli.query:tables",
        "List the published tables: rows, size, files, version and batch, from their Delta logs.",
    ),
    "explain": LazyCommand(
        "include.cli.origin:explain",
        "Show the Kafka records behind a row of gold: partitions, offsets and batches, optionally payloads.",
    ),
    "lineage": LazyCommand(
        "include.cli.origin:lineage",
        "Show the lineage of tables: topic, bronze, silver, rejected and gold of each dataset.",
    ),
    "analysis": LazyCommand(
        "include.cli.quality:analysis_app", "Analyses: iterative and learning jobs over published tables."
    ),
    "metrics": LazyCommand(
        "include.cli.serving:metrics",
        "Serve metrics of streams, tables, plans, processes for Prometheus; `up` does so with HEADRACE_METRICS=on.",
    ),
    "alerts": LazyCommand(
        "include.cli.serving:alerts",
        "Evaluate the alert conditions, and deliver each change once: firing, later resolved. Needs no Prometheus.",
    ),
    "openlineage": LazyCommand(
        "include.cli.serving:openlineage",
        "Send the runs of streams, plans and analyses as OpenLineage events; `up` does so too when a receiver is set.",
    ),
    "audit": LazyCommand(
        "include.cli.audit:audit",
        "Compare Kafka, bronze, silver, rejected and gold independently. Exit 0 balanced, 1 not, 2 not fully audited.",
    ),
    "rejected": LazyCommand(
        "include.cli.changes:rejected_app", "Records that are not in silver: list, fix, discard, reinstate."
    ),
    "contract": LazyCommand(
        "include.cli.folder:contract_app", "Contracts: check the declared rules of records and tables."
    ),
    "quality": LazyCommand("include.cli.quality:app", "Data quality: rule violations, table rules, drift."),
    "release": LazyCommand("include.cli.changes:app", "Ship a changed dataset folder: build, compare, publish."),
    "backfill": LazyCommand(
        "include.cli.changes:backfill", "Recompute the events of a range of time, and verify or patch them."
    ),
    "load": LazyCommand("include.cli.changes:load", "Load history from files, beside the stream."),
    "replay": LazyCommand("include.cli.changes:replay", "Recompute Kafka records, and insert those that bronze lacks."),
    "plan": LazyCommand("include.cli.plan:app", "Plans: change history, from planning to rollback."),
    "grains": LazyCommand(
        "include.cli.grains:grains",
        "Show which windows and sessions of gold are open (early), closed (on time), corrected or verified.",
    ),
    "reference": LazyCommand(
        "include.cli.folder:reference_app", "Reference tables that events are joined with: list, load."
    ),
    "ledger": LazyCommand(
        "include.cli.upkeep:ledger_app", "The ledger: an index of the Delta commits, batch by batch."
    ),
    "maintain": LazyCommand(
        "include.cli.upkeep:maintain",
        "Compact all tables, delete old files, releases and plan rows, trim logs; exit 1 when a dataset was skipped.",
    ),
    "storage": LazyCommand(
        "include.cli.upkeep:storage",
        "Show bytes by dataset, release and table: current files, replaced ones, logs, and what is deleted next.",
    ),
    "repair": LazyCommand(
        "include.cli.upkeep:repair",
        "Roll back tables that lost commits, replace an unusable checkpoint, rebuild the index of identities.",
    ),
    "restore": LazyCommand(
        "include.cli.upkeep:restore",
        "Fetch a dataset's published tables from the object store, and continue from there.",
    ),
    "settings": LazyCommand(
        "include.cli.settings:settings",
        "List every setting: variable, value, where it comes from, default, meaning; exit code 2 when one is invalid.",
    ),
    "completion": LazyCommand(
        "include.cli.main:completion",
        "Print a script for your shell that completes commands, options, datasets and plans.",
    ),
}


class Headrace(LazyGroup):
    """All commands of `headrace`."""

    commands_by_name = COMMANDS


app = typer.Typer(cls=Headrace, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


# They read files that have other names in earlier versions; `up` renames them too.
NEEDS_CURRENT_STATE = {"backfill", "demo-change", "load", "maintain", "plan", "rejected", "release", "repair", "replay"}


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
    """Run the command line; a HeadraceError becomes a message on stderr and exit code 2, Ctrl-C in a query 130.

    With --json the message is one JSON object, also for options that are wrong.
    """
    # Files of the state folder may hold payloads and settings: they are for this user only.
    os.umask(0o077)
    if COMPLETES in os.environ:
        # It registers the shells with Typer, which then prints what completes the words, and exits.
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()
    try:
        sys.exit(app(standalone_mode="--json" not in sys.argv))
    except HeadraceError as error:
        show_error(_with_known_datasets(error))
        sys.exit(2)
    except TyperException as error:
        show_error(Refused(error.format_message(), "the same command with --help", code="usage"))
        sys.exit(error.exit_code)
    except typer.Abort:
        show_error(Refused("not confirmed; nothing was done", code="not-confirmed"))
        sys.exit(FAILED)
    except RuntimeError as error:
        # DuckDB raises this for Ctrl-C.
        if str(error) != "Query interrupted":
            raise
        sys.exit(INTERRUPTED)


def show_error(error: HeadraceError) -> None:
    """Print an error on stderr; with --json as an object of its code, its message and the next command."""
    if "--json" in sys.argv:
        values = {"code": error.code, "message": error.what, "next": error.remedy or None}
        print(json.dumps(values, ensure_ascii=False), file=sys.stderr)
    else:
        console = Console(stderr=True)
        text = f"[bold red]headrace:[/] {escape(str(error))}"
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)


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
