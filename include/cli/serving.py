"""`headrace console`, `metrics`, `alerts`, `openlineage`: what the platform shows to people and systems."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from include.ground.ports import LOOPBACK, chosen_port, given_port, refuse_unusable_host
from include.ground.settings import InvalidSetting, Settings, load_settings


def console(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port. (default: that of HEADRACE_CONSOLE, or a free one)")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; other than loopback needs a log-in.")] = LOOPBACK,
    add_user: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Add a user to HEADRACE_CONSOLE_PASSWORDS, or change the password; exit."),
    ] = None,
) -> None:
    """Serve the console: streams, tables, plans, quality; logged-in users decide on plans. `up` starts it too."""
    settings = load_settings()
    if add_user is not None:
        _add_user(settings, add_user)
        return
    from include.serve.console import refuse_exposed, serve

    refuse_unusable_host(host, "console")
    refuse_exposed(settings, host)
    chosen = chosen_port(0, given_port(settings.console) if port is None else port, "console", "--port")
    text = f"console: http://{host}:{chosen}   (Ctrl-C ends it)"
    Console(soft_wrap=True).print(text, highlight=False, markup=False)
    serve(settings, host, chosen)


def _add_user(settings: Settings, name: str) -> None:
    """Read a password, twice in a terminal, and store it. Raises InvalidSetting without a password file."""
    from include.serve.log_in import add_user

    if settings.console_passwords is None:
        raise InvalidSetting("HEADRACE_CONSOLE_PASSWORDS", "names no file for the users of the console")
    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    add_user(settings.console_passwords, name, password)
    text = f"{name} may log in now, also to a console that runs: {settings.console_passwords}"
    Console(soft_wrap=True).print(text, highlight=False, markup=False)


if TYPE_CHECKING:
    from include.observe.alerts import Deliver


def metrics(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port. (default: that of HEADRACE_METRICS, or a free one)")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = LOOPBACK,
    once: Annotated[bool, typer.Option("--once", help="Print the figures and exit.")] = False,
) -> None:
    """Serve metrics of streams, tables, plans, processes for Prometheus; `up` does so with HEADRACE_METRICS=on."""

    from include.observe.metrics import HeadraceCollector, serve

    settings = load_settings()
    if once:
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(HeadraceCollector(settings))
        typer.echo(generate_latest(registry).decode(), nl=False)
        return
    refuse_unusable_host(host, "metrics endpoint")
    chosen = chosen_port(0, given_port(settings.metrics) if port is None else port, "metrics", "--port")
    text = f"metrics: http://{host}:{chosen}/metrics   (Ctrl-C ends it)"
    Console(soft_wrap=True).print(text, highlight=False, markup=False)
    serve(settings, host, chosen)


def alerts(
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="POST each change there, as JSON.")] = None,
    command: Annotated[
        str | None, typer.Option(metavar="CMD", help="Run this for each change, with the JSON on its standard input.")
    ] = None,
    every: Annotated[float, typer.Option(min=1, max=3600, help="Seconds between two evaluations.")] = 15.0,
    once: Annotated[bool, typer.Option("--once", help="Evaluate once and exit: 1 when an alert fires.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="Print the same conditions as rules of Prometheus.")] = False,
) -> None:
    """Evaluate the alert conditions, and deliver each change once: firing, later resolved. Needs no Prometheus.

    Changes are printed, and sent to a webhook or a command; failed deliveries are retried at the next evaluation.
    """

    from include.observe.alerts import AlertEvaluation, CommandReceiver, Webhook, rules_text

    if rules:
        typer.echo(rules_text(), nl=False)
        return
    if webhook and command:
        raise typer.BadParameter("choose a webhook or a command; a command may call several receivers")
    receiver: Deliver | None = Webhook(webhook) if webhook else CommandReceiver(command) if command else None
    console = Console(soft_wrap=True)
    evaluation = AlertEvaluation(load_settings(), receiver, partial(console.print, highlight=False, markup=False))
    with evaluation.alone():
        if once:
            firing = evaluation.firing(datetime.now(UTC))
            console.print(f"alerts that fire: {firing}", highlight=False)
            raise typer.Exit(1 if firing else 0)
        console.print(f"alerts: evaluated every {every:g} s, changes are printed   (Ctrl-C ends it)", highlight=False)
        with suppress(KeyboardInterrupt):
            while True:
                evaluation.continue_after_errors(datetime.now(UTC))
                time.sleep(every)


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

    The receiver is HEADRACE_OPENLINEAGE_URL, for instance Marquez, or a file, file:///path.
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

    from include.observe.lineage_events import declared_events, event_naming
    from include.observe.lineage_sender import known_brokers

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
