"""A plan refuses a folder for what `contract check` calls not valid, in the same words."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.change.contract_check import check_contracts, refuse_invalid_folder
from include.declare.dataset import declared_dataset, released_dataset, snapshot_dataset
from include.ground.errors import Terminal
from include.ground.settings import CLONE, Settings
from include.read.publication import Publication, publish

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Edit = Callable[[str], str]


@pytest.fixture
def edited(settings: Settings, tmp_path: Path) -> Callable[[Edit], Settings]:
    """Return a function that publishes weather as it is, and edits the contract of its folder."""
    datasets = tmp_path / "datasets"
    shutil.copytree(CLONE / "include" / "datasets" / "weather", datasets / "weather")
    changed = settings.model_copy(update={"datasets": datasets})
    release = snapshot_dataset(changed, "weather").release
    publish(changed, Publication("weather", release, 0, NOON, {0: 1}, {}))
    contract = datasets / "weather" / "contract.yaml"

    def edit(text: Edit) -> Settings:
        before = contract.read_text("utf-8")
        contract.write_text(text(before), "utf-8")
        assert contract.read_text("utf-8") != before
        return changed

    return edit


def refused(settings: Settings) -> list[str]:
    """Return the problems for which a plan refuses the folder."""
    (release,) = (path.name for path in (settings.state / "releases" / "weather").iterdir())
    published = released_dataset(settings, "weather", release).contract
    try:
        refuse_invalid_folder(settings, declared_dataset(settings, "weather"), published)
    except Terminal as error:
        return list(error.facts["problems"])
    return []


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        (lambda text: text.replace("maximum: 140", "maximum: 130"), "breaking"),
        (lambda text: text.replace("maximum: 140", "maximum: 150"), "additive"),
    ],
)
def test_a_version_that_does_not_express_the_changes_is_refused(
    edited: Callable[[Edit], Settings], edit: Edit, kind: str
) -> None:
    settings = edited(edit)
    (check,) = check_contracts(settings, "weather")
    (problem,) = refused(settings)
    assert not check.is_valid
    assert problem.startswith(check.version_problem)
    assert kind in problem
    assert check.required_version is not None
    edited(lambda text: text.replace(f"version: {check.version}", f"version: {check.required_version}", 1))
    assert check_contracts(settings, "weather")[0].is_valid
    assert refused(settings) == []


def test_a_contract_that_breaks_the_standard_is_refused(edited: Callable[[Edit], Settings]) -> None:
    settings = edited(lambda text: text.replace("status: active", "status: [active]"))
    (check,) = check_contracts(settings, "weather")
    assert not check.is_valid
    assert refused(settings) == list(check.problems)


def test_other_wording_needs_no_other_version(edited: Callable[[Edit], Settings]) -> None:
    settings = edited(lambda text: f"{text}\n# a note\n")
    assert check_contracts(settings, "weather")[0].is_valid
    assert refused(settings) == []
