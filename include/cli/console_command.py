"""`headrace console`: serve the console in this terminal, or add a user who may decide in it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from include.ground.ports import LOOPBACK, chosen_port, refuse_unusable_host
from include.ground.settings import InvalidSetting, Settings, load_settings


def console(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port. (default: HEADRACE_CONSOLE_PORT, or a free one)")
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
    from include.serve.console_server import refuse_exposed, serve

    refuse_unusable_host(host, "console")
    refuse_exposed(settings, host)
    chosen = chosen_port(0, settings.console_port if port is None else port, "console", "--port")
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
