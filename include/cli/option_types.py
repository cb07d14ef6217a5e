"""Parsers of option values, for all commands: a wrong value is a usage error (exit code 2) that names the option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from include.ground import strict_values
from include.ground.strict_values import MAX_OFFSET, MAX_PARTITION

Value = TypeVar("Value")
Model = TypeVar("Model", bound=BaseModel)


def parser_of(parse: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Return `parse` as a Typer parser: its ValueError becomes typer.BadParameter with the same text."""

    def parsed(given: Any) -> Value:
        try:
            return parse(given)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed


utc_time = parser_of(strict_values.utc_time)
share = parser_of(strict_values.share)
offset_ranges = parser_of(strict_values.offset_ranges)
batch_range = parser_of(strict_values.batch_range)
output_file = parser_of(strict_values.output_file)
sample_file = parser_of(strict_values.sample_file)

Offsets = Annotated[
    dict[int, tuple[int, int]] | None,
    typer.Option(
        "--offsets",
        parser=offset_ranges,
        metavar="JSON",
        help='By partition, end exclusive: {"0": [100, 200]}.',
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Partition = Annotated[int, typer.Argument(min=0, max=MAX_PARTITION)]
Offset = Annotated[int, typer.Argument(min=0, max=MAX_OFFSET)]


def validated(model: type[Model], **options: Any) -> Model:
    """Return a command's options as a parameter model; options that were not given are left out.

    Raises typer.BadParameter with the first wrong option.
    """
    try:
        return model.model_validate({name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        name, why = str(first["loc"][0]) if first["loc"] else "", first["msg"].removeprefix("Value error, ")
        raise typer.BadParameter(f"{name}: {why}" if name else why) from error
