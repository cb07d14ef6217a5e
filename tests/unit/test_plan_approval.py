"""A plan that policy does not approve waits for a person's decision in Airflow."""

from __future__ import annotations

import pytest
import test_operators
from airflow.providers.standard.operators.hitl import ApprovalOperator
from headrace_airflow.operators import ApprovePlan
from test_operators import WAY, context_of, planned

from include.ground.settings import Settings
from include.plans.journal import load_plan
from include.plans.plan import Stage

own_settings = test_operators.own_settings


def test_plan_that_needs_approval_waits_for_a_person(own_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    record, requests = planned(own_settings, *WAY[:2], verdict="needs approval"), []
    monkeypatch.setattr(ApprovalOperator, "execute", lambda each, _: requests.append((each.subject, each.body)))
    assert ApprovePlan(task_id="approve", dataset="flights").execute(context_of(record)) is None
    ((subject, body),) = requests
    assert (subject, body) == (
        f"Publish the change? flights, {record.plan.about}",
        f"\n\nSee [the whole comparison](/headrace/plans/{record.plan.id}), or `headrace plan show {record.plan.id}`",
    )
    assert load_plan(own_settings, record.plan.id).stage is Stage.COMPARED
