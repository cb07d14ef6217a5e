"""The result of one contract rule evaluated on one whole table."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field, computed_field
from pydantic.dataclasses import dataclass

from include.declare.contract_rules import FAIL, HOLD


@dataclass(frozen=True)
class RuleResult:
    """Whether the table passed; `passed` is None when the rule was not evaluated.

    `observed`: a value, a count of failing rows, or an error. `failed_before`: the published table fails the rule too,
    so the plan that changes other rows of it is not blocked. `samples`: some values that break the rule. The second
    name of a field is the one in stored comparisons of earlier versions.
    """

    table: str
    rule: str
    expectation: str
    action: str
    severity: str
    passed: Annotated[bool | None, Field(validation_alias=AliasChoices("passed", "is_kept"))]
    observed: Annotated[str, Field(validation_alias=AliasChoices("observed", "seen"))]
    failed_before: Annotated[bool, Field(validation_alias=AliasChoices("failed_before", "was_broken"))] = False
    samples: tuple[str, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def blocks(self) -> bool:
        """Whether the table must not be published."""
        return self.passed is False and self._is_blocking and not self.failed_before

    @property
    def needs_approval(self) -> bool:
        """Whether a rule that could block was not evaluated."""
        return self.passed is None and self._is_blocking

    @property
    def outcome(self) -> str:
        """`passed`, `failed` or `not evaluated`."""
        return {True: "passed", False: "failed", None: "not evaluated"}[self.passed]

    @property
    def _is_blocking(self) -> bool:
        return self.action in (HOLD, FAIL)
