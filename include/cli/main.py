"""`headrace`: the entry point. A command's module is imported when the command runs, not when they are listed."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
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
    """Where a command is, `module:attribute` (a function or a Typer app).

    `passes_on`: its arguments are those of another program, from the first word on.
    """

    target: str
    passes_on: bool = False

    @property
    def summary(self) -> str:
        """The first line of its help, for the list of commands: read from the module's text, which is not imported."""
        module, attribute = self.target.split(":")
        found = find_spec(module) if find_spec(module.partition(".")[0]) else None
        text = Path(found.origin).read_text("utf-8") if found and found.origin else ""
        in_function = rf'^def {attribute}\(.*?"""(.+?)(?:"""|\n)'
        match = re.search(rf'{in_function}|^{attribute} = typer\.Typer\([^\n]*help="([^"]+)"', text, re.M | re.S)
        return (match[1] or match[2]) if match else "Only in a clone of the repository."

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
    from include.plans.journal import newest_plans

    return [record.plan.id for record in newest_plans(load_settings(), 50).plans]


KNOWN_VALUES = {"dataset": _datasets, "datasets": _datasets, "plan": _plans}


class CommandStub(TyperCommand):
    """Stands for a command in the list of commands, in suggestions and in completion; loads it to parse arguments."""

    def __init__(self, name: str, declared: LazyCommand) -> None:
        super().__init__(name)
        self._declared = declared

    @property
    def help(self) -> str:
        return self._declared.summary

    @help.setter
    def help(self, _: object) -> None:
        """Click sets it to None."""

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
    "demo": LazyCommand("demo.command:demo"),
    "demo-change": LazyCommand("demo.change:demo_change"),
    "demo-workloads": LazyCommand("workloads.command:demo_workloads"),
    "airflow": LazyCommand("include.cli.up:airflow", passes_on=True),
    "bench": LazyCommand("benchmarks.command:app"),
    "produce": LazyCommand("include.producers.command:produce"),
    "new": LazyCommand("include.cli.folder:new"),
    "try": LazyCommand("include.cli.folder:try_sample"),
    "doctor": LazyCommand("include.cli.up:doctor"),
    "up": LazyCommand("include.cli.up:up"),
    "down": LazyCommand("include.cli.up:down"),
    "status": LazyCommand("include.cli.status:status"),
    "console": LazyCommand("include.cli.serving:console"),
    "wait": LazyCommand("include.cli.status:wait"),
    "query": LazyCommand("include.cli.query:query"),
    "tables": LazyCommand("include.cli.query:tables"),
    "explain": LazyCommand("include.cli.origin:explain"),
    "lineage": LazyCommand("include.cli.origin:lineage"),
    "analysis": LazyCommand("include.cli.quality:analysis_app"),
    "metrics": LazyCommand("include.cli.serving:metrics"),
    "alerts": LazyCommand("include.cli.serving:alerts"),
    "openlineage": LazyCommand("include.cli.serving:openlineage"),
    "audit": LazyCommand("include.cli.audit:audit"),
    "rejected": LazyCommand("include.cli.rejected:app"),
    "contract": LazyCommand("include.cli.folder:contract_app"),
    "quality": LazyCommand("include.cli.quality:app"),
    "release": LazyCommand("include.cli.changes:app"),
    "backfill": LazyCommand("include.cli.changes:backfill"),
    "load": LazyCommand("include.cli.changes:load"),
    "replay": LazyCommand("include.cli.changes:replay"),
    "plan": LazyCommand("include.cli.plan:app"),
    "grains": LazyCommand("include.cli.grains:grains"),
    "reference": LazyCommand("include.cli.folder:reference_app"),
    "ledger": LazyCommand("include.cli.upkeep:ledger_app"),
    "maintain": LazyCommand("include.cli.upkeep:maintain"),
    "storage": LazyCommand("include.cli.upkeep:storage"),
    "repair": LazyCommand("include.cli.upkeep:repair"),
    "restore": LazyCommand("include.cli.upkeep:restore"),
    "settings": LazyCommand("include.cli.settings:settings"),
    "completion": LazyCommand("include.cli.main:completion"),
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
