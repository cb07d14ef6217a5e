"""A command group that imports a command's module when the command is run, not when the group is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from include.ground.errors import Terminal


@dataclass(frozen=True)
class LazyCommand:
    """Where a command is, `module:attribute` (a function or a Typer app), and its line in the list of commands.

    `passes_on`: its arguments are those of another program, from the first word on.
    """

    target: str
    summary: str
    passes_on: bool = False

    def load(self, name: str) -> Any:
        """Import the module and return the command (its type is private to Typer)."""
        module, attribute = self.target.split(":")
        try:
            found = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name != module.split(".")[0]:
                raise
            raise Terminal(
                f"this installation has no `headrace {name}`; nothing was done", "run it in a clone"
            ) from error
        if isinstance(found, typer.Typer):
            group = get_group(found)
            group.name = name
            return group
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        options = {"ignore_unknown_options": True, "allow_interspersed_args": False}
        app.command(name, context_settings=options if self.passes_on else None)(found)
        return get_command(app)


class CommandStub(TyperCommand):
    """Stands for a command in the list of commands, in suggestions and in completion; loads it to parse arguments."""

    def __init__(self, name: str, declared: LazyCommand) -> None:
        super().__init__(name, help=declared.summary)
        self._declared = declared

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of the loaded command, so that the stub itself is never invoked."""
        return self._declared.load(str(self.name)).make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """A group whose commands are the `commands_by_name` of a subclass, in that order."""

    commands_by_name: Mapping[str, LazyCommand] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: CommandStub(name, declared) for name, declared in self.commands_by_name.items()}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse text that is not UTF-8 here, for all commands: no file, table or query can hold it."""
        for text in args:
            if any("\ud800" <= character <= "\udfff" for character in text):
                ctx.fail(f"{text[:80]!r} is not UTF-8")
        return super().parse_args(ctx, args)
