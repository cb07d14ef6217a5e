"""Decisions in the console: only by who is logged in, only from our own form, each one logged."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from console_client import CSRF, PASSWORD, USER, console_client, logged_in, with_passwords
from error_codes import raises
from fastapi.testclient import TestClient
from plan_samples import plan_at

from include.ground.errors import Refused
from include.ground.settings import Settings
from include.plans.journal import load_plan
from include.plans.plan import Stage
from include.serve import plans
from include.serve.action_log import last_actions
from include.serve.console import serve
from include.serve.log_in import Access, PasswordFileUnusable, add_user, read_passwords

PLAN = "release-flights-1"


@pytest.fixture
def open_settings(settings: Settings, tmp_path: Path) -> Settings:
    found = with_passwords(settings, tmp_path)
    plan_at(found, Stage.BUILT, Stage.COMPARED)
    return found


@pytest.fixture
def client(open_settings: Settings) -> Iterator[TestClient]:
    with console_client(open_settings) as found:
        yield found


def await_outcome(client: TestClient) -> str:
    for _ in range(100):
        text = client.get(f"/plans/{PLAN}").text
        if "is being executed" not in text:
            return text
        time.sleep(0.05)
    raise AssertionError("the decision did not end")


def test_plan_is_rejected_by_who_is_logged_in(client: TestClient, open_settings: Settings) -> None:
    token = logged_in(client)
    answer = client.post(f"/plans/{PLAN}/reject", data={"csrf": token})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/plans/{PLAN}")
    assert "Reject by ann is done" in await_outcome(client)
    record = load_plan(open_settings, PLAN)
    assert (record.stage, record.events[-1].by) == (Stage.REJECTED, USER)
    logged = [(each.user, each.what, each.about, each.outcome) for each in last_actions(open_settings, 9)]
    assert logged == [
        *((USER, "reject", PLAN, "done"), (USER, "reject", PLAN, "requested")),
        (USER, "log-in", "", "done"),
    ]


def test_approved_plan_is_published_by_apply_which_reports_its_error(
    client: TestClient, open_settings: Settings
) -> None:
    token = logged_in(client)
    client.post(f"/plans/{PLAN}/approve", data={"csrf": token})
    assert "Approve by ann is done" in await_outcome(client)
    client.post(f"/plans/{PLAN}/apply", data={"csrf": token})
    text = await_outcome(client)
    assert "Apply by ann failed:" in text
    assert load_plan(open_settings, PLAN).stage is Stage.APPROVED


def test_no_second_decision_is_offered_while_one_is_executed(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, goes_on = logged_in(client), threading.Event()
    waiting = replace(plans.DECISIONS["approve"], decide=lambda *_: goes_on.wait(30))
    monkeypatch.setattr(plans, "DECISIONS", {**plans.DECISIONS, "approve": waiting})
    assert "<button>Approve</button>" in client.get(f"/plans/{PLAN}").text
    client.post(f"/plans/{PLAN}/approve", data={"csrf": token})
    text = client.get(f"/plans/{PLAN}").text
    assert ("Approve by ann is being executed" in text, f"/plans/{PLAN}/approve" in text) == (True, False)
    assert client.post(f"/plans/{PLAN}/reject", data={"csrf": token}).status_code == 409
    goes_on.set()
    assert f"/plans/{PLAN}/approve" in await_outcome(client)


@pytest.mark.parametrize("decision", ["approve", "reject", "cancel", "apply", "rollback"])
def test_nothing_is_decided_without_log_in(client: TestClient, open_settings: Settings, decision: str) -> None:
    answer = client.post(f"/plans/{PLAN}/{decision}", data={"csrf": ""})
    assert (answer.status_code, "nobody is logged in" in answer.text) == (403, True)
    assert load_plan(open_settings, PLAN).stage is Stage.COMPARED


def test_forged_form_is_refused(client: TestClient, open_settings: Settings) -> None:
    token = logged_in(client)
    for data, headers, status in (
        ({}, {}, 403),
        ({"csrf": "x" * 43}, {}, 403),
        ({"csrf": token}, {"origin": "http://evil.example"}, 403),
        ({"csrf": token, "more": "x" * 70_000}, {}, 413),
    ):
        assert client.post(f"/plans/{PLAN}/reject", data=data, headers=headers).status_code == status
    assert client.get(f"/plans/{PLAN}/reject").status_code == 405, "a link decides nothing"
    assert load_plan(open_settings, PLAN).stage is Stage.COMPARED


def test_decision_that_may_not_follow_is_refused(client: TestClient) -> None:
    token = logged_in(client)
    assert client.post(f"/plans/{PLAN}/rollback", data={"csrf": token}).status_code == 409
    assert client.post(f"/plans/{PLAN}/nonsense", data={"csrf": token}).status_code == 404
    assert client.post("/plans/release-flights-7/reject", data={"csrf": token}).status_code == 404


def test_log_in_fails_with_a_wrong_password_and_stops_guessing(client: TestClient, open_settings: Settings) -> None:
    for user, password in ((USER, "wrong horse"), ("bob", PASSWORD), (USER, ""), ("", ""), (USER, "x" * 2000)):
        assert client.post("/log-in", data={"user": user, "password": password}).status_code == 403
    answer = client.post("/log-in", data={"user": USER, "password": PASSWORD})
    assert (answer.status_code, "too many failed log-ins" in answer.text) == (429, True)
    assert [each.outcome for each in last_actions(open_settings, 9)] == ["wrong user or password"] * 5


def test_cookie_is_kept_from_scripts_and_other_sites(client: TestClient) -> None:
    answer = client.post("/log-in", data={"user": USER, "password": PASSWORD})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


def test_log_out_ends_the_session(client: TestClient) -> None:
    token = logged_in(client)
    before = client.cookies[Access.COOKIE]
    assert client.post("/log-out", data={"csrf": token}).status_code == 303
    client.cookies.set(Access.COOKIE, before)
    assert not CSRF.search(client.get("/plans").text)


def test_session_ends_after_hours(tmp_path: Path) -> None:
    now = [0.0]
    add_user(tmp_path / "p", USER, PASSWORD)
    access = Access(tmp_path / "p", clock=lambda: now[0])
    token = access.log_in(USER, PASSWORD, "here")
    assert token is not None
    assert access.session(token) is not None
    now[0] = 8 * 3600.0
    assert access.session(token) is None


def test_session_of_a_user_with_a_new_password_decides_nothing(client: TestClient, open_settings: Settings) -> None:
    token = logged_in(client)
    assert open_settings.console_passwords is not None
    add_user(open_settings.console_passwords, USER, f"another {PASSWORD}")
    answer = client.post(f"/plans/{PLAN}/reject", data={"csrf": token})
    assert (answer.status_code, "another password" in answer.text) == (403, True)
    assert load_plan(open_settings, PLAN).stage is Stage.COMPARED


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)", ""]
)
def test_log_in_never_leads_to_another_site(client: TestClient, to: str) -> None:
    answer = client.post("/log-in", data={"user": USER, "password": PASSWORD, "to": to})
    assert answer.headers["location"] == "/"


def test_console_without_passwords_only_shows(settings: Settings) -> None:
    plan_at(settings, Stage.BUILT, Stage.COMPARED)
    with console_client(settings) as client:
        assert "read-only" in client.get("/").text
        assert "This console only shows" in client.get("/log-in").text
        assert client.post("/log-in", data={"user": USER, "password": PASSWORD}).status_code == 403
        assert client.post(f"/plans/{PLAN}/approve", data={"csrf": ""}).status_code == 403
    assert load_plan(settings, PLAN).stage is Stage.COMPARED


def test_other_machines_see_nothing_without_log_in(open_settings: Settings) -> None:
    with console_client(open_settings, host="192.0.2.7") as client:
        for path in ("/", "/sql?q=select+1", "/live/overview", "/tables", f"/plans/{PLAN}"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/log-in"), path
        logged_in(client)
        assert client.get("/").status_code == 200


def test_server_refuses_to_show_tables_to_other_machines(settings: Settings) -> None:
    with raises(Refused, "console-exposed", match="without a log-in"):
        serve(settings, "0.0.0.0", 0)


def test_password_file_must_be_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    add_user(path, USER, PASSWORD)
    assert path.stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in path.read_text()
    path.chmod(0o640)
    with pytest.raises(PasswordFileUnusable, match="others than its owner"):
        read_passwords(path)
    path.chmod(0o600)
    path.write_text(f"{USER}:{PASSWORD}\n")
    with pytest.raises(PasswordFileUnusable, match="line 1") as raised:
        read_passwords(path)
    assert PASSWORD not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "password"), [("", PASSWORD), ("a:b", PASSWORD), ("a\nb", PASSWORD), ("ann", "short")]
)
def test_user_that_cannot_be_stored_is_refused(tmp_path: Path, name: str, password: str) -> None:
    with raises(Refused, "invalid-user"):
        add_user(tmp_path / "passwords", name, password)
    assert not (tmp_path / "passwords").exists()
