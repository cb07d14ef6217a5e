"""The rules of a contract: expectations of Great Expectations, each with an action for what breaks it.

    quality:
      - type: custom
        engine: greatExpectations
        name: arrived_later            # in `rejected` and in reports
        severity: critical             # critical, warning or info
        customProperties: [{property: action, value: reject}]
        implementation: {type: expect_column_…, kwargs: {column: …, row_condition: {…}, mostly: 0.99}}

Actions and where they apply: adr-0001.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import AliasChoices, BeforeValidator, Field, TypeAdapter, ValidationError, computed_field
from pydantic.dataclasses import dataclass as validated_dataclass

from include.declare.column_type import ColumnType
from include.declare.portable_regex import DEFAULT_STRING_BYTES, pattern_fault, time_fault
from include.declare.row_expectations import (
    PAIR,
    ROW_EXPECTATIONS,
    TABLE_EXPECTATIONS,
    Condition,
    RowCondition,
    condition_columns,
    known_column,
    typed_condition,
    why_not_per_record,
)
from include.declare.yaml_declarations import (
    Declared,
    Finding,
    InvalidValue,
    Key,
    accepted_names,
    finding,
    inside,
    shown,
)

REJECT, WARN, HOLD, FAIL = "reject", "warn", "hold", "fail"
Action = Literal["reject", "warn", "hold", "fail"]
Severity = Literal["critical", "warning", "info"]
LISTS = ("column_list", "column_set")


@dataclass(frozen=True)
class Rule:
    """One expectation of a table and its action.

    `columns` are those it validates; `arguments` its own, typed (of row rules) or as written; `mostly` the share of
    records that must keep it; `condition` selects the rows it applies to, None all; `written` are the kwargs for
    Great Expectations as they stand in the contract.
    """

    name: str
    expectation: str
    action: str
    severity: str
    columns: tuple[str, ...]
    arguments: Mapping[str, Any]
    mostly: float
    condition: Condition | None
    written: Mapping[str, Any]

    @property
    def validates_records(self) -> bool:
        """Whether the rule validates each record as it arrives, not a table as a whole."""
        return self.action == REJECT or (self.action == WARN and self.expectation in ROW_EXPECTATIONS)


class _Action(Declared):
    property: Literal["action"]
    value: Action


class _Kwargs(Declared, extra="allow"):
    """The arguments that all expectations share; the rest are its own."""

    mostly: Annotated[int | float, Field(gt=0, le=1)] = 1
    row_condition: RowCondition | None = None
    condition_parser: Any = None


class _Expectation(Declared):
    ignored: ClassVar[frozenset[str]] = frozenset({"meta", "description"})
    type: str
    kwargs: dict[str, Any] = {}


def _parsed_text(value: Any) -> Any:
    """A text holds the mapping as YAML or JSON."""
    try:
        return yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError as error:
        raise ValueError(f"is a text that is not YAML: {getattr(error, 'problem', None) or error}") from error


class RuleModel(Declared):
    """An item of `quality` that is a rule of Great Expectations."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {"id", "description", "dimension", "businessImpact", "tags", "authoritativeDefinitions"}
    )
    type: Literal["custom"]
    engine: Literal["greatExpectations"]
    name: str
    severity: Severity = "critical"
    customProperties: Annotated[list[_Action], Field(min_length=1, max_length=1)]
    implementation: Annotated[_Expectation, BeforeValidator(_parsed_text)]


def typed_rule(
    model: RuleModel,
    types: Mapping[str, ColumnType] | None,
    *,
    column: str | None = None,
    lengths: Mapping[str, int] | None = None,
    strict: bool = True,
) -> Rule:
    """Return a rule over columns of these types; raises InvalidValue.

    `column` is the property whose rule it is, if any. `types` is None for a gold table, whose columns the contract
    does not know: checkpoints alone evaluate its rules. `lengths` are the longest texts of the columns.
    """
    expectation, written = model.implementation.type, dict(model.implementation.kwargs)
    if column is not None:
        written.setdefault("column", column)
    with inside("implementation", "kwargs"):
        shared = _shared_arguments(written)
    own = dict(shared.model_extra or {})
    action = model.customProperties[0].value
    facts: dict[str, Any] = {
        "name": model.name,
        "expectation": expectation,
        "action": action,
        "severity": model.severity,
    }
    facts |= {"written": written, "mostly": float(shared.mostly)}
    if types is not None and shared.row_condition is not None:
        with inside("implementation", "kwargs", "row_condition"):
            facts["condition"] = typed_condition(shared.row_condition, types)
    if expectation in ROW_EXPECTATIONS and types is not None:
        with inside("implementation", "kwargs"):
            return _accepted(_row_rule(facts, own, types), pattern_fault, lengths or {}, strict)
    with inside("implementation"):
        rule = _table_rule(facts, own, types)
        with inside("kwargs"):
            return _accepted(rule, time_fault, lengths or {}, strict)


def rule_findings(rules: Iterable[tuple[Key, Rule]]) -> Iterator[Finding]:
    """Yield the rules with an invalid name, and those that share name and column with another."""
    rules = list(rules)
    by_column: dict[tuple[str, ...], list[tuple[Key, str]]] = {}
    for key, rule in rules:
        by_column.setdefault(rule.columns[:1], []).append(((*key, "name"), rule.name))
    for column, names in by_column.items():
        for key, why in accepted_names(names):
            yield key, f"{why} for {column[0]}" if column and why.endswith("twice") else why


def _shared_arguments(written: Mapping[str, Any]) -> _Kwargs:
    try:
        return KWARGS.validate_python(written)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, why = finding(first, written, _Kwargs)
        raise InvalidValue(why, *key) from error


def _row_rule(facts: dict[str, Any], own: dict[str, Any], types: Mapping[str, ColumnType]) -> Rule:
    spec = ROW_EXPECTATIONS[facts["expectation"]]
    columns = tuple(known_column(own.pop(key, None), types, key) for key in spec.columns)
    kinds = [types[column] for column in columns]
    if len({kind.comparable or kind.name for kind in kinds}) > 1 or any(kind not in spec.types for kind in kinds):
        known, given = (", ".join(dict.fromkeys(kind.physical[0] for kind in each)) for each in (spec.types, kinds))
        raise InvalidValue(f"{facts['expectation']} is for one type of {known}, not {given}")
    if facts["action"] == REJECT and facts["mostly"] < 1:
        why = f"a record is rejected or not, so `reject` needs mostly: 1, is {facts['mostly']:g}"
        raise InvalidValue(why, "mostly")
    arguments = spec.read(own, types[columns[0]])
    return Rule(columns=columns, arguments=arguments, **{"condition": None, **facts})


def _table_rule(facts: dict[str, Any], own: Mapping[str, Any], types: Mapping[str, ColumnType] | None) -> Rule:
    expectation = facts["expectation"]
    if facts["action"] == REJECT:
        why = "applies to a table, not a record" if types is None else why_not_per_record(expectation)
        raise InvalidValue(f"{expectation} cannot reject a record: it {why}; use warn, hold or fail", "type")
    if expectation not in TABLE_EXPECTATIONS and expectation not in ROW_EXPECTATIONS:
        raise InvalidValue(
            f"{shown(expectation)} {why_not_per_record(expectation)}; headrace contract rules lists them", "type"
        )
    named = [(key, own[key]) for key in ("column", *PAIR) if key in own]
    named += [(key, name) for key in LISTS for name in own.get(key, ())]
    columns = tuple(name if types is None else known_column(name, types, "kwargs", key) for key, name in named)
    return Rule(columns=columns, arguments=own, **{"condition": None, **facts})


def _accepted(rule: Rule, fault: Callable[..., str | None], lengths: Mapping[str, int], strict: bool) -> Rule:
    """Return the rule; raises InvalidValue for a pattern that is refused."""
    longest = max((lengths.get(column, DEFAULT_STRING_BYTES) for column in rule.columns), default=DEFAULT_STRING_BYTES)
    for key, value in rule.arguments.items() if strict else ():
        patterns = {"regex": [value], "regex_list": value}.get(key, ())
        for pattern in patterns if isinstance(patterns, list | tuple) else ():
            if isinstance(pattern, str) and (why := fault(pattern, longest=longest)):
                raise InvalidValue(why, key)
    return rule


KWARGS = TypeAdapter(_Kwargs)


def referenced_columns(rule: Rule) -> tuple[str, ...]:
    """Return every column that a rule names: those it validates, and those of its condition."""
    return tuple(dict.fromkeys([*rule.columns, *condition_columns(rule.condition)]))


@validated_dataclass(frozen=True)
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
