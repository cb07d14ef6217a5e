"""The build jobs of a plan: one for each dataset that it moves, a derived one over what was built before it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from include.change.bounded_jobs import FactsReporter, JobFailed, run_job
from include.change.plan_kind import PlanKind
from include.ground.settings import Settings
from include.plans.plan import Plan

KindOf = Callable[[Plan], PlanKind]


def build_parts(settings: Settings, plan: Plan, kind_of: KindOf, report: FactsReporter) -> Mapping[str, Any]:
    """Run the build jobs; return the output of the first, with those of the others in `members`.

    The first job pins what the members have published, at one state of the sources that all of them share.
    Raises JobFailed, JobDied, JobTimedOut.
    """
    first = _output(settings, plan, plan.dataset, kind_of(plan).build_job(plan), report)
    pinned, built, analysed = first.get("members", {}), list[Any](), dict(first.get("analysed", {}))
    members = dict[str, Mapping[str, Any]]()
    for part in plan.parts[1:]:
        source = pinned[part.dataset].get("over")
        order = {"published": pinned[part.dataset]["published"], "over": [*([source] if source else []), *built]}
        *job, _ = kind_of(part).build_job(part)
        members[part.dataset] = _output(settings, plan, part.dataset, (*job, json.dumps(order)), report)
        built.append(members[part.dataset]["built"])
        # A later job has seen more of the new tables.
        analysed |= members[part.dataset].get("analysed", {})
    return {**first, "members": members, "analysed": analysed}


def _output(
    settings: Settings, plan: Plan, dataset: str, job: tuple[str, ...], report: FactsReporter
) -> Mapping[str, Any]:
    output = run_job(settings, plan.id, dataset, job, report)
    if "built" not in output:
        why, again = str(output.get("failed", "the build was stopped")), f"headrace plan apply {plan.id} continues it"
        raise JobFailed(plan.id, why, str(output.get("remedy") or again))
    return output
