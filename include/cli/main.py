"""`headrace`: the command line's entry point."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from include.cli import (
    bench_command,
    contract_command,
    ledger_command,
    plan_command,
    quality_command,
    reference_command,
    rejected_command,
    release_command,
    slice_commands,
)
from include.cli.audit_command import audit
from include.cli.decision_commands import discard_rejected, fix_rejected, reinstate_rejected
from include.cli.demo_change_command import demo_change
from include.cli.demo_command import demo
from include.cli.doctor_command import doctor
from include.cli.grains_command import grains
from include.cli.maintain_command import maintain
from include.cli.produce_command import produce
from include.cli.query_command import query, tables
from include.cli.repair_command import repair
from include.cli.settings_command import settings
from include.cli.status_command import status, wait
from include.cli.up_command import down, up
from include.errors import HeadraceError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


# They read files that earlier versions named otherwise; `up` renames them too.
NEEDS_CURRENT_STATE = {"backfill", "demo-change", "maintain", "plan", "rejected", "release", "replay"}


@app.callback()
def headrace(context: typer.Context) -> None:
    """Kafka to Delta, every record accounted for."""
    if context.invoked_subcommand not in NEEDS_CURRENT_STATE or "--help" in sys.argv:
        return
    from include.settings import load_settings
    from include.state.migrate_state import migrate_state

    for line in migrate_state(load_settings()):
        Console(stderr=True, soft_wrap=True).print(f"state: renamed {escape(line)}", highlight=False)


app.command()(demo)
app.command("demo-change")(demo_change)
app.add_typer(bench_command.app, name="bench")
app.add_typer(contract_command.app, name="contract")
app.add_typer(ledger_command.app, name="ledger")
app.add_typer(reference_command.app, name="reference")
rejected_command.app.command("fix")(fix_rejected)
rejected_command.app.command("discard")(discard_rejected)
rejected_command.app.command("reinstate")(reinstate_rejected)
app.add_typer(rejected_command.app, name="rejected")
app.add_typer(release_command.app, name="release")
app.add_typer(slice_commands.backfill, name="backfill")
app.add_typer(slice_commands.replay, name="replay")
app.add_typer(plan_command.app, name="plan")
app.add_typer(quality_command.app, name="quality")
app.command()(audit)
app.command()(grains)
app.command()(query)
app.command()(tables)
app.command()(produce)
app.command()(up)
app.command()(down)
app.command()(doctor)
app.command()(maintain)
app.command()(repair)
app.command()(status)
app.command()(wait)
app.command()(settings)


def main() -> None:
    """Run the command line; a HeadraceError becomes a message on stderr and exit code 2."""
    try:
        app()
    except HeadraceError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]headrace:[/] {escape(str(error))}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
