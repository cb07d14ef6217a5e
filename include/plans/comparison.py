"""The comparison of two releases, or of a slice before and after, at the same bronze batch: values and the verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, ConfigDict, Field, TypeAdapter, computed_field
from pydantic.dataclasses import dataclass

from include.declare.contract_rules import RuleResult
from include.plans.dependants import Effect, holding

EQUAL, WITHIN_POLICY, NEEDS_APPROVAL, HELD = "equal", "within policy", "needs approval", "held"
# Sums of the same doubles differ in their last digits from one order of rows to another.
ORDER_OF_ADDING = 1e-12
# JSON has no NaN or infinity: they are stored as strings.
_VALUES = ConfigDict(ser_json_inf_nan="strings")


@dataclass(frozen=True, config=_VALUES)
class MeasureChange:
    """A numeric column that both tables have: its sums (as doubles) and its shares of nulls (0 to 1)."""

    column: str
    old_sum: float | None
    new_sum: float | None
    old_nulls: float
    new_nulls: float

    @property
    def has_other_sum(self) -> bool:
        """Whether the sums differ by more than the order in which doubles are added."""
        if self.old_sum is None or self.new_sum is None:
            return self.old_sum is not self.new_sum
        return not math.isclose(self.old_sum, self.new_sum, rel_tol=ORDER_OF_ADDING)

    @property
    def percent(self) -> float | None:
        """Change of the sum in percent; None when a sum is null or the old sum is 0."""
        if self.old_sum is None or self.new_sum is None or self.old_sum == 0:
            return None
        return 100.0 * (self.new_sum - self.old_sum) / abs(self.old_sum)


@dataclass(frozen=True, config=_VALUES)
class ColumnProfile:
    """What a column holds: counts of rows, nulls and distinct values; `low`, `high` and `total` (of numbers) as texts;
    `top`: its most frequent values with their counts."""

    rows: int
    nulls: int
    distinct: int
    low: str | None = None
    high: str | None = None
    total: str | None = None
    top: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, config=_VALUES)
class ColumnChange:
    """A column that is not the same on both sides. `kind`: new, removed, retyped or changed."""

    column: str
    kind: str
    old: ColumnProfile | None
    new: ColumnProfile | None


@dataclass(frozen=True, config=_VALUES)
class Sample:
    """One differing key with up to three of its rows on each side."""

    key: Mapping[str, Any]
    old: Sequence[Mapping[str, Any]] = ()
    new: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, config=_VALUES)
class TableComparison:
    """One table. `keys` are its key columns; `added`, `missing` and `changed` count keys, not rows.

    `presence`: both, added (only the new release has the table), removed, rekeyed (the key columns differ, so rows
    cannot be matched). `retyped`: column → old and new type; `widened`: of those whose new type has each value of
    the old one, and whose values are compared. `samples`: kind of change → up to five samples.
    `profiles`: what new and changed columns hold; comparisons of earlier versions have none.
    """

    name: str
    presence: str
    keys: Sequence[str] = ()
    old_rows: int = 0
    new_rows: int = 0
    old_keys: int = 0
    added: int = 0
    missing: int = 0
    changed: int = 0
    columns_added: Sequence[str] = ()
    columns_removed: Sequence[str] = ()
    retyped: Mapping[str, tuple[str, str]] = Field(default_factory=dict)
    widened: Mapping[str, tuple[str, str]] = Field(default_factory=dict)
    samples: Mapping[str, Sequence[Sample]] = Field(default_factory=dict)
    # "drift" in comparisons stored by earlier versions.
    measures: Annotated[Sequence[MeasureChange], Field(validation_alias=AliasChoices("measures", "drift"))] = ()
    profiles: Sequence[ColumnChange] = ()

    @property
    def differing(self) -> int:
        """Number of keys that are not the same in both tables."""
        return self.added + self.missing + self.changed

    @computed_field  # type: ignore[prop-decorator]
    @property
    def share(self) -> float:
        """Differing keys per old key; 1 when there were no keys and there are some now."""
        return self.differing / self.old_keys if self.old_keys else float(self.differing > 0)

    @computed_field(alias="equal")  # type: ignore[prop-decorator]
    @property
    def is_equal(self) -> bool:
        """Whether a reader sees no difference."""
        same_columns = not (self.columns_added or self.columns_removed or self.retyped or self.widened)
        return self.presence == "both" and same_columns and self.differing == 0


@dataclass(frozen=True, config=_VALUES)
class Comparison:
    """Releases `base` and `release` at bronze batch `batch`; `threshold`: share of keys that may differ unapproved.

    `checks`: results of the contract's table rules on the new tables (`include/change/quality.py`).
    `dependants`: what the release does to the derived datasets and analyses that read the tables.
    """

    dataset: str
    base: str
    release: str
    batch: int
    threshold: float
    tables: Sequence[TableComparison]
    checks: Sequence[RuleResult] = ()
    dependants: Sequence[Effect] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> str:
        """HELD, NEEDS_APPROVAL, EQUAL or WITHIN_POLICY.

        HELD: a blocking rule failed, or a running dependant breaks, even if every row is equal. NEEDS_APPROVAL: a
        blocking rule was not evaluated, or more differs than the threshold allows. WITHIN_POLICY: at most the threshold
        of each table's keys differs, and no table, column or type is lost. An added table or column and a wider type
        take nothing away: no approval.
        """
        if any(check.blocks for check in self.checks) or holding(self.dependants):
            return HELD
        if any(check.needs_approval for check in self.checks):
            return NEEDS_APPROVAL
        if self.is_equal:
            return EQUAL
        return WITHIN_POLICY if all(self._is_small(table) for table in self.tables) else NEEDS_APPROVAL

    @property
    def is_equal(self) -> bool:
        """Whether a reader sees no difference in any table."""
        return all(table.is_equal for table in self.tables)

    def _is_small(self, table: TableComparison) -> bool:
        if table.presence != "both":
            return table.presence == "added"
        return not table.columns_removed and not table.retyped and 0 <= table.share <= self.threshold

    def to_json(self) -> dict[str, Any]:
        """Return all fields and the verdict as JSON values."""
        values: dict[str, Any] = json.loads(_COMPARISONS.dump_json(self, by_alias=True))
        return values


def comparison_from_json(text: str) -> Comparison:
    """Return a stored comparison, also one of an earlier version."""
    return _COMPARISONS.validate_python(json.loads(text))


_COMPARISONS = TypeAdapter(Comparison)
