"""The rules of a contract: Great Expectations' expectations with what is to be done when they are broken.

    quality:
      - type: custom
        engine: greatExpectations
        name: arrived_later            # as it stands in `rejected` and in reports
        severity: critical             # critical, warning or info
        customProperties: [{property: action, value: reject}]
        implementation: {type: expect_column_…, kwargs: {column: …, row_condition: {…}, mostly: 0.99}}

What an action means, and where it acts: adr-0001.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from include.catalog.row_conditions import Condition, condition_columns, read_condition
from include.catalog.row_expectations import PAIR, ROW_EXPECTATIONS, TABLE_EXPECTATIONS, why_not_per_record
from include.catalog.yaml_declarations import DeclarationRefused, Node

REJECT, WARN, HOLD, FAIL = "reject", "warn", "hold", "fail"
ACTIONS = (REJECT, WARN, HOLD, FAIL)
SEVERITIES = ("critical", "warning", "info")
NAME = re.compile(r"^[a-z][a-z0-9_]{0,62}$")
LISTS = ("column_list", "column_set")


@dataclass(frozen=True)
class Rule:
    """One expectation of a table and its action.

    `columns` are those that it judges; `arguments` its own, typed (of row rules) or as written; `mostly` the share of
    records that must keep it; `condition` says which rows it is about, None all. `written` are Great Expectations'
    kwargs as they stand in the contract.
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
        """Whether each record is judged as it comes, not a table as a whole."""
        return self.action == REJECT or (self.action == WARN and self.expectation in ROW_EXPECTATIONS)


def read_rules(
    nodes: Iterable[Node], types: Mapping[str, str], *, column: str | None = None, gold: bool = False
) -> tuple[Rule, ...]:
    """Return the rules that `quality` lists; `column` is the property that the list belongs to, if any.

    `types` are the record's columns and their types. Of a `gold` table columns are not known here: its rules are asked
    by checkpoints alone.
    """
    return tuple(_rule(node, types, column, gold) for node in nodes)


def validate_names(rules: Iterable[Rule], place: str) -> None:
    """Rules are told apart by name and column."""
    for (name, column), count in Counter((rule.name, rule.columns[:1]) for rule in rules).items():
        if count > 1:
            raise DeclarationRefused(place, f"{count} rules are called {name!r} for {', '.join(column) or 'the table'}")


def _rule(node: Node, types: Mapping[str, str], column: str | None, gold: bool) -> Rule:
    node.one_of("type", ["custom"])
    node.one_of("engine", ["greatExpectations"])
    name, severity = node.take("name", str), node.maybe("severity", str, SEVERITIES[0])
    if not NAME.match(name):
        raise DeclarationRefused(f"{node.place}.name", f"must be lower case letters, digits and _, is {name!r}")
    if severity not in SEVERITIES:
        raise DeclarationRefused(f"{node.place}.severity", f"{severity!r} is none of {', '.join(SEVERITIES)}")
    action = _action(node)
    body = _body(node)
    node.ignore("id", "description", "dimension", "businessImpact", "tags", "authoritativeDefinitions")
    node.finish()
    expectation = body.take("type", str)
    kwargs = dict(body.maybe("kwargs", dict, {}))
    body.ignore("meta", "description")
    body.finish()
    if column is not None:
        kwargs.setdefault("column", column)
    facts = {"name": name, "expectation": expectation, "action": action, "severity": severity, "written": kwargs}
    place = f"{body.place}.kwargs"
    if expectation in ROW_EXPECTATIONS and not gold:
        return _row_rule(facts, kwargs, types, place)
    return _set_rule(facts, kwargs, None if gold else types, body.place)


def _action(node: Node) -> str:
    for prop in node.nodes("customProperties"):
        prop.one_of("property", ["action"])
        found = prop.one_of("value", ACTIONS)
        prop.finish()
        return found
    raise DeclarationRefused(
        node.place, f"says no action; write customProperties: [{{property: action, value: {'|'.join(ACTIONS)}}}]"
    )


def _body(node: Node) -> Node:
    """`implementation` is a mapping, or a text that holds one."""
    given = node.take("implementation", object)
    return Node(yaml.safe_load(given) if isinstance(given, str) else given, f"{node.place}.implementation")


def _row_rule(facts: dict[str, Any], kwargs: Mapping[str, Any], types: Mapping[str, str], place: str) -> Rule:
    spec, left = ROW_EXPECTATIONS[facts["expectation"]], dict(kwargs)
    columns = tuple(_column(left.pop(key, None), types, f"{place}.{key}") for key in spec.columns)
    kinds = {types[column] for column in columns}
    if len(kinds) > 1 or not kinds <= set(spec.types):
        known = ", ".join(spec.types)
        raise DeclarationRefused(place, f"{facts['expectation']} is for one type of {known}, not {sorted(kinds)}")
    condition, mostly = _condition(left, types, place), _mostly(left, place)
    if facts["action"] == REJECT and mostly < 1:
        raise DeclarationRefused(f"{place}.mostly", "a record is rejected or not; of `reject` mostly is 1")
    arguments = spec.read(left, types[columns[0]], place)
    return Rule(**facts, columns=columns, arguments=arguments, mostly=mostly, condition=condition)


def _set_rule(facts: dict[str, Any], kwargs: Mapping[str, Any], types: Mapping[str, str] | None, place: str) -> Rule:
    expectation = facts["expectation"]
    if facts["action"] == REJECT:
        why = "asks a table, not a record" if types is None else why_not_per_record(expectation)
        raise DeclarationRefused(place, f"{expectation} cannot reject a record: it {why}; use warn, hold or fail")
    if expectation not in TABLE_EXPECTATIONS and expectation not in ROW_EXPECTATIONS:
        raise DeclarationRefused(f"{place}.type", f"{expectation!r} {why_not_per_record(expectation)}")
    left = dict(kwargs)
    named = [left[key] for key in ("column", *PAIR) if key in left]
    named += [name for key in LISTS for name in left.get(key, ())]
    columns = tuple(named if types is None else (_column(name, types, place) for name in named))
    condition = None if types is None else _condition(left, types, place)
    return Rule(**facts, columns=columns, arguments=left, mostly=_mostly(dict(kwargs), place), condition=condition)


def _column(name: object, types: Mapping[str, str], place: str) -> str:
    if name not in types:
        raise DeclarationRefused(place, f"{name!r} is no column of the contract")
    return str(name)


def _condition(left: dict[str, Any], types: Mapping[str, str], place: str) -> Condition | None:
    given = left.pop("row_condition", None)
    left.pop("condition_parser", None)
    return None if given is None else read_condition(given, types, f"{place}.row_condition")


def _mostly(left: dict[str, Any], place: str) -> float:
    mostly = left.pop("mostly", 1)
    if isinstance(mostly, bool) or not isinstance(mostly, int | float) or not 0 < mostly <= 1:
        raise DeclarationRefused(f"{place}.mostly", f"must be a share between 0 and 1, is {mostly!r}")
    return float(mostly)


def referenced_columns(rule: Rule) -> tuple[str, ...]:
    """Return every column that a rule looks at: those it judges, and those of its condition."""
    return tuple(dict.fromkeys([*rule.columns, *condition_columns(rule.condition)]))
