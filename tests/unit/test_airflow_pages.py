"""Headrace's pages in Airflow: they require a login, serve only existing files, and run no script."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from airflow.api_fastapi.core_api.security import get_user
from airflow_server import served
from fastapi.testclient import TestClient
from headrace_airflow import plugin
from headrace_airflow.operators import ComparisonLink, RuleResultsLink

from include.ground.paths import docs_path
from include.ground.settings import Settings
from include.plans.journal import comparison_path, save_plan
from include.plans.plan import REPLAY, Plan, Prediction

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
REPLAY_RUN = SimpleNamespace(dag_id="replay__flights", run_id="manual__1")


@pytest.fixture(autouse=True)
def page_settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    plan = Plan("replay-flights-1", REPLAY, "flights", "a", "a", NOON, "ann", 0.0, [], Prediction(1, 2, 3, 4, 5.0, 6.0))
    save_plan(settings, plan.__class__(**{**plan.__dict__, "origin": "replay__flights/manual__1"}))
    with served(settings, monkeypatch):
        yield settings


@pytest.fixture
def logged_in_client() -> Iterator[TestClient]:
    """A client that is logged in."""
    plugin.pages.dependency_overrides[get_user] = lambda: None
    yield TestClient(plugin.pages)
    plugin.pages.dependency_overrides.clear()


def test_comparison_page_requires_a_login(page_settings: Settings) -> None:
    comparison_path(page_settings, "replay-flights-1", "html").write_text("secret")
    answer = TestClient(plugin.pages).get("/plans/replay-flights-1")
    assert (answer.status_code, "secret" in answer.text) == (401, False)


def test_comparison_page_is_served_without_scripts_once_compared(
    page_settings: Settings, logged_in_client: TestClient
) -> None:
    assert logged_in_client.get("/plans/replay-flights-1").status_code == 404, "it is not compared yet"
    assert ComparisonLink().get_link(None, ti_key=REPLAY_RUN) == ""
    comparison_path(page_settings, "replay-flights-1", "html").write_text("<h1>equal</h1>")
    answer = logged_in_client.get("/plans/replay-flights-1")
    assert (answer.status_code, answer.text) == (200, "<h1>equal</h1>")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert ComparisonLink().get_link(None, ti_key=REPLAY_RUN) == "/headrace/plans/replay-flights-1"


@pytest.mark.parametrize("plan", ["replay-flights-2", "..%2F..%2Fkeys", "%2e%2e", "replay-flights-1%00", "{{7*7}}"])
def test_unknown_plan_is_not_found(logged_in_client: TestClient, plan: str) -> None:
    assert logged_in_client.get(f"/plans/{plan}").status_code == 404


@pytest.mark.parametrize("page", ["", "http://127.0.0.1:8081"])
def test_console_is_found_at_the_api_or_where_it_is_a_service(
    page_settings: Settings, logged_in_client: TestClient, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.setattr(plugin, "_answer", lambda path: {"page": page} if path == "console" else {})
    answer = logged_in_client.get("/console", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, page or "http://localhost:1")


QUALITY_RUN = SimpleNamespace(dag_id="quality__flights", run_id="manual__1")


def test_rule_results_require_a_login(page_settings: Settings, logged_in_client: TestClient) -> None:
    assert RuleResultsLink().get_link(None, ti_key=QUALITY_RUN) == ""
    site = docs_path(page_settings, "flights")
    site.mkdir(parents=True)
    (site / "overview.html").write_text("<h1>kept</h1>")
    link = RuleResultsLink().get_link(None, ti_key=QUALITY_RUN)
    assert link == "/headrace/docs/flights/overview.html"
    answer = logged_in_client.get(link.removeprefix("/headrace"))
    assert (answer.status_code, answer.text) == (200, "<h1>kept</h1>")
    assert "script" not in answer.headers["content-security-policy"]
    plugin.pages.dependency_overrides.clear()
    assert TestClient(plugin.pages).get("/docs/flights/overview.html").status_code == 401


@pytest.mark.parametrize(
    "page", ["flights/..%2Flast.json", "flights/%2Fetc%2Fpasswd", "..%2Fquality/flights/last.json", "flights/", "x/y"]
)
def test_page_outside_the_rule_results_is_not_found(
    page_settings: Settings, logged_in_client: TestClient, page: str
) -> None:
    docs_path(page_settings, "flights").mkdir(parents=True)
    (docs_path(page_settings, "flights").parent / "last.json").write_text("secret")
    assert logged_in_client.get(f"/docs/{page}").status_code == 404
