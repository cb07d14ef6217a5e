"""Routes of plans: the list, one plan, and the decisions of logged-in users."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from include.plans.journal import load_plan
from include.serve.action_log import last_actions
from include.serve.log_in import UserSession
from include.serve.page_response import Console, console_of, page, session_of
from include.serve.plan_decisions import PlanDesk, possible_decisions
from include.serve.plans_view import plan_view, plans_view
from include.serve.session_pages import checked_form

routes = APIRouter()
ACTIONS_SHOWN = 20
MOST_PAGES = 10_000


def desk_of(console: Console) -> PlanDesk:
    """Return the desk of this server."""
    found: PlanDesk = console.memory.get("desk") or console.memory.setdefault("desk", PlanDesk(console.settings))
    return found


@routes.get("/plans", response_class=HTMLResponse)
def plans(request: Request, page_number: int = 0) -> HTMLResponse:
    """Return a page of the list of plans."""
    settings = console_of(request).settings
    view = plans_view(settings, min(max(page_number, 0), MOST_PAGES))
    return page(request, "plans", "Plans", "Plans", view=view, actions=last_actions(settings, ACTIONS_SHOWN))


@routes.get("/plans/{plan}", response_class=HTMLResponse)
def one_plan(request: Request, plan: str) -> HTMLResponse:
    """Return the page of a plan. Raises PlanUnknown, PlanUnreadable."""
    console = console_of(request)
    shown = plan_part(console, plan, session_of(request))
    return page(request, "plan", "Plans", plan, live=f"/live/plans/{quote(plan)}", **shown)


def plan_part(console: Console, plan: str, session: UserSession | None) -> dict[str, Any]:
    """Return what the part of the page shows that changes. Raises PlanUnknown, PlanUnreadable."""
    outcome = desk_of(console).outcomes.get(plan)
    may_decide = session is not None and (outcome is None or outcome.done)
    return {
        "view": plan_view(console.settings, plan),
        "decisions": possible_decisions(load_plan(console.settings, plan)) if may_decide else (),
        "csrf": session.csrf if session else "",
        "outcome": outcome,
        "actions": last_actions(console.settings, ACTIONS_SHOWN, plan),
    }


@routes.post("/plans/{plan}/{decision}")
async def decide(request: Request, plan: str, decision: str) -> Response:
    """Begin a decision of the user, and return to the plan's page. Raises FormRefused and those of
    `submit`."""
    console = console_of(request)
    session, _ = await checked_form(request)
    address = request.client.host if request.client else ""
    await run_in_threadpool(desk_of(console).submit, plan, decision, session.user, address)
    return RedirectResponse(f"/plans/{quote(plan)}", 303)
