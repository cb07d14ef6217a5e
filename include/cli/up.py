"""`headrace up` and `headrace down`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

NAMES = typer.Argument(help="datasets whose streams are wanted; none: all", show_default=False)


def say(console: Console, line: str) -> None:
    """Print a line of progress, the process's name in bold."""
    name, _, rest = line.partition(": ")
    console.print(f"[bold]{escape(name):16}[/] {escape(rest)}", highlight=False, soft_wrap=True)


def up(datasets: Annotated[list[str] | None, NAMES] = None) -> None:
    """Want the streams, start a runner that keeps them and the broker running, wait until they work."""
    from include.catalog.dataset import dataset_names
    from include.settings import load_settings
    from include.supervision.processes import NotStarted
    from include.supervision.processes import up as bring_up

    settings, console = load_settings(), Console()
    try:
        seen = bring_up(settings, datasets or dataset_names(settings), lambda line: say(console, line))
    except NotStarted as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]headrace:[/] {escape(str(error))}", highlight=False)
        raise typer.Exit(1) from error
    console.print(
        f"[green]up[/]: {len(seen)} processes in {escape(str(settings.state))}", highlight=False, soft_wrap=True
    )


def down(
    datasets: Annotated[list[str] | None, typer.Argument(help="drain only these streams", show_default=False)] = None,
) -> None:
    """Drain the streams at their next batch boundary, then stop the broker and the runner; or drain these alone."""
    from include.settings import load_settings
    from include.supervision.processes import down as bring_down
    from include.supervision.states import ProcessState

    settings, console = load_settings(), Console()
    before = bring_down(settings, lambda line: say(console, line), datasets or [])
    if all(status.state is ProcessState.STOPPED for status in before):
        console.print("nothing was running", highlight=False)
