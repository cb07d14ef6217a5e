"""`headrace openlineage`: send OpenLineage events of what is done, or export what is declared."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from include.ground.settings import Settings, load_settings


def openlineage(
    once: Annotated[bool, typer.Option("--once", help="Send what is due and exit.")] = False,
    export: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the declared jobs to a file instead, one event per line; - prints them."
        ),
    ] = None,
) -> None:
    """Send the runs of streams, plans and analyses as OpenLineage events; `up` does so too when a receiver is set.

    The receiver is HEADRACE_OPENLINEAGE_URL, for instance Marquez, or HEADRACE_OPENLINEAGE_FILE.
    """

    settings, console = load_settings(), Console(soft_wrap=True)
    show = partial(console.print, highlight=False, markup=False)
    if export is not None:
        _export(settings, export)
        return
    from include.observe.lineage_sender import EventFollower, receiver, serve

    if not once:
        serve(settings, show)
        return
    follower = EventFollower(settings, receiver(settings), show)
    with follower.alone():
        show(f"{follower.poll():,} events were delivered")


def _export(settings: Settings, target: str) -> None:
    from openlineage.client.serde import Serde

    from include.observe.lineage_events import event_naming
    from include.observe.lineage_sender import known_brokers
    from include.observe.lineage_tables import declared_events

    events = declared_events(settings, event_naming(settings, known_brokers(settings)), datetime.now(UTC))
    lines = "".join(f"{Serde.to_json(event)}\n" for event in events)
    if target == "-":
        sys.stdout.write(lines)
        return
    try:
        Path(target).write_text(lines, "utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{target} cannot be written: {error.strerror}") from error
    Console(soft_wrap=True).print(f"{lines.count(chr(10))} jobs: {target}", highlight=False, markup=False)
