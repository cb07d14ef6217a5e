"""The console as a process: `python -m include.serve.console_server HOST PORT`, until SIGTERM.

Reads: settings of the environment.  Writes: its log.
After a crash: the runner starts it again at the same port; whoever was logged in logs in again.
"""

from __future__ import annotations

import sys

from include.ground.errors import Refused
from include.ground.http_server import is_loopback, serve_application
from include.ground.settings import Settings, load_settings
from include.read.limited_query import QUERIES
from include.serve.console_app import console_app


def refuse_exposed(settings: Settings, host: str) -> None:
    """Raise Refused (console-exposed) when others than this machine could read without a log-in."""
    # Without users nobody can log in, so that only the API answers, by its token.
    if not is_loopback(host) and settings.console_passwords is None and settings.api_token_file is None:
        raise Refused(
            f"at {host} others than this machine could read every table without a log-in; the console was not started",
            "set HEADRACE_CONSOLE_PASSWORDS to a file, headrace console --add-user NAME, then the same again",
            code="console-exposed",
            host=host,
        )


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve the console until SIGTERM or SIGINT. Raises Refused (console-exposed)."""
    refuse_exposed(settings, host)
    QUERIES.start_one()
    serve_application(console_app(settings, host), host, port)


if __name__ == "__main__":
    serve(load_settings(), sys.argv[1], int(sys.argv[2]))
