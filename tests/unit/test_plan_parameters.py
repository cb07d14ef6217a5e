"""A field of a parameter model is all that a parameter needs: option, form and validation are made from it."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from include.change.kind import PlanKind
from include.change.plan_parameters import (
    LoadParameters,
    Option,
    PlanParameters,
    ReleaseParameters,
    ReplayParameters,
    form,
)
from include.change.stages import KINDS
from include.cli.plan import given, with_options


class CarefulParameters(PlanParameters):
    careful: bool = Field(False, title="Careful", description="Takes longer.")
    most_rows: Annotated[int | None, Option(metavar="N")] = Field(None, description="At most so many.", gt=0)


app = typer.Typer()


@app.command()
@with_options(CarefulParameters)
def plan(dataset: Annotated[str, typer.Option("--dataset")], loud: bool = False, **options: Any) -> None:
    parameters = given(CarefulParameters, options)
    print(dataset, loud, parameters.careful, parameters.most_rows, parameters.threshold)


def test_option_is_made_from_the_field() -> None:
    ran = CliRunner().invoke(app, ["--dataset", "d", "--careful", "--most-rows", "3", "--threshold", "5%"])
    assert ran.output.split() == ["d", "False", "True", "3", "0.05"]


def test_options_that_were_not_given_have_the_defaults_of_the_model() -> None:
    assert CliRunner().invoke(app, ["--dataset", "d"]).output.split() == ["d", "False", "False", "None", "0.0"]


@pytest.mark.parametrize(
    ("model", "name", "field"), [(LoadParameters, "--files", "files"), (ReleaseParameters, "--with", "members")]
)
def test_option_of_several_values_is_given_again(model: type[PlanParameters], name: str, field: str) -> None:
    several = typer.Typer()
    taken: list[PlanParameters] = []

    @several.command()
    @with_options(model)
    def command(dataset: Annotated[str, typer.Option("--dataset")], **options: Any) -> None:
        taken.append(given(model, options))

    for values in (["one"], ["one", "two"]):
        done = CliRunner().invoke(several, ["--dataset", "a", *(word for each in values for word in (name, each))])
        assert done.exit_code == 0, done.output
        assert list(getattr(taken[-1], field)) == values


def test_wrong_option_is_a_usage_error_that_names_it() -> None:
    ran = CliRunner().invoke(app, ["--dataset", "d", "--most-rows", "0"])
    assert ran.exit_code == 2
    assert "--most-rows" in ran.output


def test_options_that_contradict_each_other_are_named_as_they_were_typed() -> None:
    options = {"start": "2013-01-01T00:00Z", "end": None, "first_batch": None, "offsets": None}
    with pytest.raises(typer.BadParameter, match="^--from-timestamp and --to-timestamp belong together$"):
        given(ReplayParameters, options)


def test_form_has_the_fields_own_first_with_defaults_and_bounds() -> None:
    fields = form(CarefulParameters)
    assert list(fields) == ["careful", "most_rows", "threshold", "dry_run"]
    assert fields["careful"]["default"] is False
    assert fields["most_rows"]["default"] is None
    assert fields["most_rows"]["type"] == ["null", "integer"]
    assert fields["most_rows"]["exclusiveMinimum"] == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.name != "reinstate"], ids=lambda k: k.name)
def test_each_field_of_a_form_has_a_title_a_description_and_a_default(kind: PlanKind[Any]) -> None:
    for name, field in form(kind.parameters).items():
        assert {"title", "description", "default"} <= field.keys(), name
        assert field["title"] != name.title()


def test_form_of_a_replay_begins_with_the_choice_of_records() -> None:
    fields = form(ReplayParameters)
    assert next(iter(fields)) == "by"
    assert fields["by"]["enum"] == ["time", "batches", "offsets"]
    assert fields["offsets"]["additionalProperties"]["maxItems"] == 2
