"""What a plan asks a slice job to recompute, unless another release has been published since."""

from __future__ import annotations

from include.catalog.history_slice import Slice
from include.errors import Terminal
from include.reading.publication import Publication
from include.settings import Settings
from include.state.release_files import planned_slice_file


class OtherRelease(Terminal):
    """The plan is about a release that is not published any more."""

    def __init__(self, plan: str, planned: str, published: str) -> None:
        super().__init__(
            f"plan {plan} is about release {planned}, and release {published} is published now; nothing was built",
            f"headrace plan cancel {plan}, then plan it again",
        )
        self.plan, self.published = plan, published


def planned_slice(settings: Settings, plan: str, published: Publication) -> Slice:
    """Return the slice of a plan. Raises OtherRelease, and Terminal without the plan's file."""
    planned = planned_slice_file(settings, plan).read()
    if planned is None:
        raise Terminal(f"plan {plan} has no plan.json; nothing was built", "headrace plan list")
    if published.release != planned.release:
        raise OtherRelease(plan, planned.release, published.release)
    return planned.slice
