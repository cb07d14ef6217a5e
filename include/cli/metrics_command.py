"""`headrace metrics`: serve figures for Prometheus. `headrace alerts`: evaluate and deliver alerts without it."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from include.ground.ports import LOOPBACK, chosen_port, refuse_unusable_host
from include.ground.settings import load_settings

if TYPE_CHECKING:
    from include.observe.alerts import Deliver


def metrics(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port. (default: HEADRACE_METRICS_PORT, or a free one)")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = LOOPBACK,
    once: Annotated[bool, typer.Option("--once", help="Print the figures and exit.")] = False,
) -> None:
    """Serve metrics of streams, tables, plans, processes for Prometheus; `up` does so with HEADRACE_METRICS=on."""

    from include.observe.metrics import OneAtATime, serve

    settings = load_settings()
    if once:
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(OneAtATime(settings))
        typer.echo(generate_latest(registry).decode(), nl=False)
        return
    refuse_unusable_host(host, "metrics endpoint")
    chosen = chosen_port(0, settings.metrics_port if port is None else port, "metrics", "--port")
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
