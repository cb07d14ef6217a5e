"""A plan's journal counts only when the tables confirm it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from error_codes import raises
from plan_samples import advanced
from small_warehouse import RELEASE, SmallWarehouse, silver_row

from include.change.recompute import write_verified
from include.change.stages import confirm
from include.declare.history_slice import BRONZE, Slice, Span
from include.ground.errors import Terminal
from include.ground.settings import Settings
from include.plans.journal import load_plan, save_plan
from include.plans.plan import BACKFILL, REPLAY, Plan, PlanRecord, Prediction, Stage
from include.plans.plan import RELEASE as A_RELEASE

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WAY = (Stage.BUILT, Stage.COMPARED, Stage.APPROVED)


@pytest.fixture
def sales(settings: Settings) -> SmallWarehouse:
    place = SmallWarehouse(settings)
    place.write("silver", [silver_row(0, "a")])
    place.move()
    return place


def applied(
    settings: Settings,
    kind: str,
    release: str = RELEASE,
    *,
    back: bool = False,
    reference: dict[str, int] | None = None,
    **facts: int,
) -> PlanRecord:
    plan = Plan(
        f"{kind}-sales-1", kind, "sales", RELEASE, release, NOON, "ann", 0.0, [], Prediction(1, 2, 3, 4, 5.0, 6.0)
    )
    slice_ = None if kind == A_RELEASE else Slice([Span(0, 0, 1, BRONZE)], NOON, NOON.replace(hour=13), reference)
    save_plan(settings, replace(plan, slice=slice_))
    record = advanced(settings, load_plan(settings, plan.id), *WAY)
    record = advanced(settings, record, Stage.APPLIED, **facts)
    return advanced(settings, record, Stage.ROLLED_BACK) if back else record


def corrected(sales: SmallWarehouse, plan: str, way: int) -> None:
    """Commit a patch as the owner of the tables does."""
    metadata = {"app_id": f"sales/{RELEASE}/plan/{plan}", "batches": [0, way], "plan": plan}
    sales.write("silver", [silver_row(way, f"b{way}")], metadata)


def test_unpublished_release_is_not_confirmed(sales: SmallWarehouse) -> None:
    with raises(Terminal, "not-confirmed", match="not fedcba987654"):
        confirm(sales.settings, applied(sales.settings, A_RELEASE, "fedcba987654"))


def test_rolled_back_release_is_confirmed(sales: SmallWarehouse) -> None:
    assert confirm(sales.settings, applied(sales.settings, A_RELEASE, "fedcba987654", back=True)).release == RELEASE


def test_patch_without_a_commit_is_not_confirmed(sales: SmallWarehouse) -> None:
    with raises(Terminal, "not-confirmed", match="no commit of it"):
        confirm(sales.settings, applied(sales.settings, REPLAY))


def test_unpublished_patch_is_not_confirmed(sales: SmallWarehouse) -> None:
    record = applied(sales.settings, REPLAY)
    corrected(sales, record.plan.id, 1)
    with raises(Terminal, "not-confirmed", match="before it"):
        confirm(sales.settings, record)
    sales.move()
    assert confirm(sales.settings, record).result == "corrected"


def test_partly_reverted_patch_is_not_confirmed(sales: SmallWarehouse) -> None:
    record = applied(sales.settings, REPLAY, back=True)
    corrected(sales, record.plan.id, 1)
    sales.move()
    with raises(Terminal, "not-confirmed", match="rolled_back"):
        confirm(sales.settings, record)
    corrected(sales, record.plan.id, 2)
    sales.move()
    assert confirm(sales.settings, record).result == "rolled back"


def test_verified_day_needs_its_verification_file(sales: SmallWarehouse) -> None:
    record = applied(sales.settings, BACKFILL, changed=0)
    with raises(Terminal, "not-confirmed", match="verified"):
        confirm(sales.settings, record)
    write_verified(sales.settings, record.plan, 0, 0)
    assert confirm(sales.settings, record).result == "verified"


def test_day_equal_with_other_reference_tables_is_confirmed_without_a_verification_file(sales: SmallWarehouse) -> None:
    record = applied(sales.settings, BACKFILL, reference={"airports": 2}, changed=0)
    assert confirm(sales.settings, record).result == "equal with the current reference tables"
