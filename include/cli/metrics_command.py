"""`headrace metrics`: serve figures for Prometheus. `headrace alerts`: evaluate and deliver alerts without it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from include.host.ports import LOOPBACK, chosen_port
from include.settings import Settings, load_settings

if TYPE_CHECKING:
    from include.metrics.alert_delivery import Deliver


def metrics(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port. [default: HEADRACE_METRICS_PORT, or a free one]")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = LOOPBACK,
    once: Annotated[bool, typer.Option("--once", help="Print the figures and exit.")] = False,
) -> None:
    """Serve figures of streams, tables, plans and processes for Prometheus, at /metrics; `up` may start it too."""

    from include.metrics.metrics_server import OneAtATime, serve

    settings = load_settings()
    if once:
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(OneAtATime(settings))
        typer.echo(generate_latest(registry).decode(), nl=False)
        return
    chosen = chosen_port(0, settings.metrics_port if port is None else port, "metrics", "--port")
    text = f"metrics: http://{host}:{chosen}/metrics   (Ctrl-C ends it)"
    Console(soft_wrap=True).print(text, highlight=False, markup=False)
    serve(settings, host, chosen)


def alerts(
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="POST each change there, as JSON.")] = None,
    command: Annotated[
        str | None, typer.Option(metavar="CMD", help="Run this for each change, with the JSON on its standard input.")
    ] = None,
    every: Annotated[float, typer.Option(min=1, max=3600, help="Seconds between two looks.")] = 15.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and exit: 1 when an alert fires.")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="Print the same conditions as rules of Prometheus.")] = False,
) -> None:
    """Evaluate the alert conditions, and deliver each change once: firing, later resolved. Needs no Prometheus.

    Changes are printed, and sent to a webhook or a command; what was not taken is sent again at the next look.
    """

    from include.metrics.alert_conditions import rules_text
    from include.metrics.alert_delivery import CommandReceiver, Webhook

    if rules:
        typer.echo(rules_text(), nl=False)
        return
    receivers: list[Deliver] = [Webhook(webhook)] if webhook else []
    receivers += [CommandReceiver(command)] if command else []
    settings = load_settings()
    looked = _AlertLoop(settings, receivers)
    try:
        while True:
            firing = looked.look(datetime.now(UTC))
            if once:
                raise typer.Exit(1 if firing else 0)
            time.sleep(every)
    except KeyboardInterrupt:
        return


class _AlertLoop:
    """Looks at the figures, delivers due changes, and keeps the states."""

    def __init__(self, settings: Settings, receivers: Sequence[Deliver]) -> None:
        from include.metrics.dataset_metrics import HeadraceCollector

        self.collector, self.receivers = HeadraceCollector(settings), receivers
        self.settings, self.console = settings, Console(soft_wrap=True)

    def look(self, now: datetime) -> int:
        """Evaluate and deliver; return how many alerts fire."""
        from include.metrics.alert_delivery import deliver_due
        from include.metrics.alert_states import AlertStates, states_file, updated_states

        file = states_file(self.settings)
        states = updated_states(file.read() or AlertStates(), self.collector.collect(), now)
        states = deliver_due(states, now, self.receivers, self._show)
        file.write(states)
        return sum(state.delivered and state.holds for state in states.alerts.values())

    def _show(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False)
