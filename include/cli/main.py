"""`headrace`: the command line's entry point."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape

from include.cli import bench, contract, history, ledger, plan, quality, reference, rejected, release
from include.cli.audit import audit
from include.cli.demo import demo
from include.cli.demo_change import demo_change
from include.cli.doctor import doctor
from include.cli.grains import grains
from include.cli.maintain import maintain
from include.cli.produce import produce
from include.cli.query import query, tables
from include.cli.rejected_decisions import discard_rejected, fix_rejected, reinstate_rejected
from include.cli.repair import repair
from include.cli.settings import settings
from include.cli.status import status, wait
from include.cli.up import down, up
from include.errors import HeadraceError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def headrace() -> None:
    """Kafka to Delta, every record accounted for."""


app.command()(demo)
app.command("demo-change")(demo_change)
app.add_typer(bench.app, name="bench")
app.add_typer(contract.app, name="contract")
app.add_typer(ledger.app, name="ledger")
app.add_typer(reference.app, name="reference")
rejected.app.command("fix")(fix_rejected)
rejected.app.command("discard")(discard_rejected)
rejected.app.command("reinstate")(reinstate_rejected)
app.add_typer(rejected.app, name="rejected")
app.add_typer(release.app, name="release")
app.add_typer(history.backfill, name="backfill")
app.add_typer(history.replay, name="replay")
app.add_typer(plan.app, name="plan")
app.add_typer(quality.app, name="quality")
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
