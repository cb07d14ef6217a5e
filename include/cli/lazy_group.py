"""A command group that imports a command's module when the command is run, not when the group is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group


@dataclass(frozen=True)
class LazyCommand:
    """Where a command is, `module:attribute` (a function or a Typer app), and its line in the list of commands."""

    target: str
    summary: str

    def load(self, name: str) -> Any:
        """Import the module and return the command (of the copy of Click inside Typer, which has no public type)."""
        module, attribute = self.target.split(":")
        found = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            group = get_group(found)
            group.name = name
            return group
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command(name)(found)
        return get_command(app)


class LazyGroup(TyperGroup):
    """A group whose commands are the `commands_by_name` of a subclass, in that order."""

    commands_by_name: Mapping[str, LazyCommand] = {}
    _is_listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands_by_name)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command: a stub with its summary while the list is printed, else the command itself."""
        declared = self.commands_by_name.get(cmd_name)
        if declared is None:
            return None
        return TyperCommand(cmd_name, help=declared.summary) if self._is_listing else declared.load(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the list of commands without importing any."""
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False
