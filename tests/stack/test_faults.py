"""A part of Airflow is killed during a replay: each stage runs once, and success means that the tables confirm it."""

from __future__ import annotations

from collections import Counter

import pytest
from site_of_stack import DATASET, Stack, await_that

from include.change.stages import confirm
from include.plans.plan import Stage

REPLAY = f"replay__{DATASET}"
PARAMETERS = {"by": "batches", "first_batch": 1, "last_batch": 1, "threshold": 1}
pytestmark = [pytest.mark.timeout(900), pytest.mark.extended]


@pytest.fixture(scope="module")
def fed(stack: Stack) -> Stack:
    """Some days of flights, and the stream that has published them."""
    stack.output_of("up", DATASET)
    stack.feed("2013-01-01", "2013-01-03")
    return stack


@pytest.mark.parametrize("part", ["scheduler", "triggerer", "dag-processor", "api-server", "console", "build"])
def test_replay_survives_the_death_of(part: str, fed: Stack) -> None:
    published = fed.publication()
    run = fed.page.trigger(REPLAY, PARAMETERS)
    fed.page.await_task(REPLAY, run, "build", "deferred")
    await_that(lambda: bool(fed.jobs()), "the build's job runs", 60)
    victim = {"console": fed.console, "build": lambda: fed.jobs()[0]}
    victim.get(part, lambda: fed.part(part))().kill()
    assert fed.page.await_run(REPLAY, run, 600) == "success", fed.page.story(REPLAY, run)
    (record,) = fed.plans(f"{REPLAY}/{run}")
    stages = Counter(event.stage for event in record.events)
    assert stages == dict.fromkeys((Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED), 1)
    assert confirm(fed.settings, record).result == "verified"
    assert fed.publication().tables == published.tables, "nothing differed, so no table was touched"
    await_that(lambda: fed.jobs() == [], "no job is left behind", 30)
    assert fed.is_balanced()
