"""Parameters of runs: accepted values, and values that are refused before anything is done."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from airflow.sdk import Param
from airflow.sdk.exceptions import ParamValidationError
from pydantic import ValidationError

from include.change.plan_parameters import Form, LoadParameters, Parameters, ReleaseParameters, ReplayParameters
from include.serve import forms
from include.serve.api import wrong_body
from include.serve.forms import AuditParameters, BackfillRun, RollbackParameters, StreamParameters

Model = TypeVar("Model", bound=Parameters)
FORMS = {model: forms.dag_form(model, {"with": ["weather_delays"]}) for model in forms.FORMS.values()}
DAY = {"start": "2013-01-02T00:00:00+00:00", "end": "2013-01-03T00:00:00Z"}


def form_values(model: type[Parameters], **more: Any) -> dict[str, Any]:
    """Return a form's default values, some of them replaced."""
    return {name: field["default"] for name, field in FORMS[model].items()} | more


def validated_params(model: type[Model], given: dict[str, Any]) -> Model:
    return model.model_validate_json(json.dumps(given, default=str))


@dataclass(frozen=True)
class Refusal:
    """A refusal by the API: the sentence that Airflow's task shows, and the parameter that it names."""

    sentence: str

    @property
    def param(self) -> str:
        return self.sentence.partition("'")[2].partition("'")[0] if self.sentence.startswith("param ") else ""


def refusal(model: type[Parameters], **more: Any) -> Refusal:
    with pytest.raises(ValidationError) as refused:
        validated_params(model, form_values(model, **more))
    return Refusal(json.loads(wrong_body(refused.value.errors()).body)["error"])


@pytest.mark.parametrize("model", FORMS)
def test_form_has_exactly_the_fields_of_its_model(model: type[Parameters]) -> None:
    assert set(FORMS[model]) == {field.alias or name for name, field in model.model_fields.items()}


def test_form_shows_the_choices_that_the_platform_knows() -> None:
    assert FORMS[ReleaseParameters]["with"]["examples"] == ["weather_delays"]


@pytest.mark.parametrize("model", [m for m in FORMS if m not in (ReplayParameters, LoadParameters)])
def test_default_values_of_the_form_are_valid(model: type[Parameters]) -> None:
    validated_params(model, form_values(model))


def test_form_of_a_load_needs_files() -> None:
    assert refusal(LoadParameters).param == "files"
    assert validated_params(LoadParameters, form_values(LoadParameters, files=["/a/*.jsonl"])).files == ["/a/*.jsonl"]


@pytest.mark.parametrize("start", ["2013", "20130102", "1357084800", 1357084800, "2013-01-02", "2013-01-02T00:00:00"])
def test_time_without_a_zone_is_refused(start: object) -> None:
    assert refusal(ReplayParameters, by="time", **{**DAY, "start": start}).param == "start"


def test_replay_range_is_given_by_time_batches_or_offsets() -> None:
    times = validated_params(ReplayParameters, form_values(ReplayParameters, by="time", **DAY))
    assert times == ReplayParameters(
        by="time", start=datetime(2013, 1, 2, tzinfo=UTC), end=datetime(2013, 1, 3, tzinfo=UTC)
    )
    batches = validated_params(
        ReplayParameters, form_values(ReplayParameters, by="batches", first_batch=0, last_batch=0)
    )
    assert batches == ReplayParameters(by="batches", first_batch=0, last_batch=0)
    offsets = validated_params(ReplayParameters, form_values(ReplayParameters, by="offsets", offsets={"0": [100, 200]}))
    assert offsets == ReplayParameters(by="offsets", offsets={0: (100, 200)})


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("surprise", 1),
        ("threshold", "0.1"),
        ("threshold", 2),
        ("threshold", float("nan")),
        ("dry_run", "yes"),
        ("start", "2013-01-02T00:00:00"),
        ("start", "{{ 7*7 }}"),
        ("start", "0000-01-01T00:00:00Z"),
        ("start", 1357084800),
        ("start", "2013-02-30T00:00:00Z"),
        ("by", "1=1"),
        ("source", "file:///etc/passwd"),
        ("offsets", {"0": ["a", 2]}),
        ("offsets", [[0, 1]]),
        ("first_batch", -1),
        ("last_batch", 99999999999999999999),
        ("offsets", {"0": [0, 99999999999999999999]}),
        ("first_batch", 1.5),
        ("predicate", "1=1"),
    ],
)
def test_wrong_value_is_refused_with_its_parameter(param: str, value: Any) -> None:
    refused = refusal(ReplayParameters, **{param: value})
    assert refused.param.split(".")[0] == param
    assert "nothing was done" in refused.sentence


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"by": "time", "start": DAY["end"], "end": DAY["start"]}, "start is not before end"),
        ({"by": "time", "start": DAY["start"], "end": DAY["start"]}, "start is not before end"),
        ({"by": "time", "start": DAY["start"]}, "belong together"),
        ({"by": "time"}, "give what that needs"),
        ({"by": "time", **DAY, "first_batch": 1, "last_batch": 2}, "nothing else"),
        ({"by": "batches", **DAY}, "give what that needs"),
        ({"by": "batches", "first_batch": 3}, "belong together"),
        ({"by": "batches", "first_batch": 3, "last_batch": 2}, "first_batch is after last_batch"),
        ({"by": "offsets", "offsets": {"0": [5, 5]}}, "is empty"),
        ({"by": "offsets", "offsets": {"../../etc": [1, 5]}}, "number of a partition"),
        ({"by": "offsets", "offsets": {"٣": [1, 5]}}, "number of a partition"),
        ({"by": "offsets", "offsets": {}}, "no partition"),
    ],
)
def test_contradictory_parameters_are_refused(given: dict[str, Any], why: str) -> None:
    assert why in refusal(ReplayParameters, **given).sentence


@pytest.mark.parametrize("plan", ["silver; DROP TABLE x", "../../etc", "{{ ds }}", "replay-flights-1\n", "replay"])
def test_malformed_plan_name_is_refused(plan: str) -> None:
    assert refusal(RollbackParameters, plan=plan).param == "plan"


def test_long_value_is_truncated_in_the_message() -> None:
    assert len(refusal(ReleaseParameters, threshold="x" * 10_000_000).sentence) < 500


def test_unknown_parameter_is_named() -> None:
    assert refusal(AuditParameters, dataset="flights").param == "dataset"


FORM_VALUES = [
    (FORMS[ReplayParameters], "last_batch", 2**63 - 1, 2**63),
    (FORMS[ReplayParameters], "first_batch", 0, -1),
    (FORMS[ReplayParameters], "offsets", {"0": [0, 2**63 - 1]}, {"0": [0, 2**63]}),
    (FORMS[ReplayParameters], "offsets", None, {"0": [1, 2, 3]}),
    (FORMS[ReplayParameters], "offsets", {"1": [0, 1]}, {"one": [0, 1]}),
    (FORMS[ReplayParameters], "start", "2013-01-02T00:00:00.000Z", "2013-01-02"),
    (FORMS[BackfillRun], "end", "2013-01-02 00:00+01:00", "tomorrow"),
    (FORMS[BackfillRun], "end", None, "{{ ds }}"),
    (FORMS[StreamParameters], "lag_seconds", 300, 1e12),
    (FORMS[StreamParameters], "grace_seconds", 0, 1e12),
]


@pytest.mark.parametrize(("form", "field", "right", "wrong"), FORM_VALUES)
def test_form_itself_refuses_numbers_and_times_out_of_bounds(
    form: Form, field: str, right: object, wrong: object
) -> None:
    """Airflow answers the trigger with 400: a number of more than 64 bits in a run ended the DAG processor."""
    param = Param(**form[field])
    assert param.resolve(right) == right
    with pytest.raises(ParamValidationError):
        param.resolve(wrong)


def test_descriptions_of_forms_are_plain_text() -> None:
    for form in FORMS.values():
        assert not [name for name, param in form.items() if "*" in (param["description"] or "")]


def test_forms_hand_their_threshold_to_the_plan() -> None:
    form = {"threshold": 0.25, "dry_run": False}
    assert ReleaseParameters.model_validate(form).threshold == 0.25
    since, until = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)
    backfill = BackfillRun.model_validate({**form, "start": None, "end": None, "reference": "as-of"})
    assert backfill.plan(since, until).threshold == 0.25
