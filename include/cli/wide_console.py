"""The console of commands that print tables."""

from __future__ import annotations

from rich.console import Console

WIDE = 4_000


def wide_console() -> Console:
    """Return a console as wide as the terminal, or so wide that no cell is cut when the output is a file."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)
