"""The loads of the stack's faults follow each other, also from one run to the next."""

from __future__ import annotations

from datetime import datetime

import pytest
from stack_tools.load import DAYS, FIRST, FeedExhausted, Load, span_of
from stack_tools.site import CommandFailed, StackSite


class StoppedSite(StackSite):
    """A stack whose state folder has manifests; commands are recorded, none runs."""

    manifests: tuple[str, ...] = ()
    commands: list[str]

    def compose(self, *words: str, within: float = 900.0) -> str:
        self.commands.append(" ".join(words))
        if "find" in words:
            return "\n".join(self.manifests)
        raise CommandFailed(words, 1, "of this run, which is finished")

    def run(self, *words: str, within: float = 900.0) -> str:
        return ""


def site(*manifests: str) -> StoppedSite:
    """Return a stack with these manifests."""
    found = StoppedSite({})
    object.__setattr__(found, "manifests", manifests)
    object.__setattr__(found, "commands", [])
    return found


def day(number: int) -> datetime:
    """Return a day of January."""
    return datetime(2013, 1, number)  # noqa: DTZ001


def test_first_run_starts_with_the_first_day() -> None:
    found = site()
    assert Load.continued(found, 3).until == FIRST
    assert len(found.commands) == 1, "nothing was sent"


def test_later_run_finishes_the_last_load_and_continues_after_it() -> None:
    found = site("/state/load-2013-01-01_2013-01-03.jsonl", "/state/load-2013-01-03_2013-01-05.jsonl.progress")
    load = Load.continued(found, 3)
    assert load.until == day(5)
    assert "--from 2013-01-03 --to 2013-01-05" in found.commands[-1]
    assert "--manifest /state/load-2013-01-03_2013-01-05.jsonl" in found.commands[-1]


def test_run_that_does_not_fit_into_the_year_is_refused_before_anything_is_sent() -> None:
    found = site("/state/load-2013-12-26_2013-12-28.jsonl")
    with pytest.raises(FeedExhausted, match="flights until 2013-12-28, too few days"):
        Load.continued(found, 2 // DAYS + 2)
    assert len(found.commands) == 1
    assert Load.continued(found, 2 // DAYS + 1).until.day == 28


def test_days_of_a_manifest_are_in_its_name() -> None:
    assert span_of("/state/load-2013-01-01_2013-01-03.jsonl.progress") == (day(1), day(3))
