"""Children: the elements of an array column of silver as rows of their own (docs/how-to/one-record-many-rows.md).

A child's row is a function of its parent's row of silver: whatever is right for silver (each record once, patches,
replays, rollback) is right for children. Spark and DuckDB make rows of elements; a test holds them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from include.declare.contract import Column, Contract
from include.declare.yaml_declarations import CONFIG, Finding, shown
from include.ground.record_coordinates import COORDINATES
from include.ground.sql_quoting import sql_identifier

INDEX = "_index"
"""The place of an element in its array, from 0 on."""
BAD_CHILDREN = "_bad_children"
"""The column of silver with the reasons of children that are rejected while their record is accepted."""


@plain_dataclass(frozen=True)
class Elements:
    """The elements of silver's array `column`, each a row with its `fields`, its index and its parent's other columns.

    `name` is how the children are declared. `rejects`: bad elements are listed in BAD_CHILDREN; these rows are without
    them, or, with `are_rejected`, only them.
    """

    name: str
    column: str = ""
    fields: tuple[str, ...] = ()
    rejects: bool = False
    are_rejected: bool = False

    def parent_columns(self, silver: Sequence[str]) -> list[str]:
        """Return the columns of silver, which has these, that each row has from its parent."""
        return [name for name in silver if name not in (self.column, BAD_CHILDREN)]

    def columns(self, silver: Sequence[str]) -> list[str]:
        return [*self.parent_columns(silver), INDEX, *self.values]

    @property
    def rejected(self) -> Elements | None:
        """The bad elements as rows; None when they reject their records."""
        return replace(self, fields=(), are_rejected=True) if self.rejects else None

    @property
    def values(self) -> tuple[str, ...]:
        return (*self.fields, *(["reasons"] if self.are_rejected else []))

    @property
    def path(self) -> str:
        """The regular expression by which a reason's path leads to an element; its group is the index."""
        return rf"^{self.column}\[([0-9]+)\]"

    def sql(self, relation: str, silver: Sequence[str]) -> str:
        """Return DuckDB's query of the rows over a relation with silver's columns."""
        array, bad = sql_identifier(self.column), sql_identifier(BAD_CHILDREN)
        index = f"unnest(range(len({array})))"
        parent = ", ".join(map(sql_identifier, self.parent_columns(silver)))
        own = f", {bad}" if self.rejects else ""
        rows = f"select {parent}, {array}, {index} as {INDEX}{own} from {relation}"
        values = [f"{array}[{INDEX} + 1].{sql_identifier(name)} as {sql_identifier(name)}" for name in self.fields]
        of_element = f"list_filter({bad}, lambda r: regexp_extract(r.column, '{self.path}', 1) = {INDEX}::varchar)"
        if self.are_rejected:
            values.append(f"{of_element} as reasons")
        where = (
            f" where (coalesce(len({of_element}), 0) > 0) = {str(self.are_rejected).lower()}" if self.rejects else ""
        )
        return f"(select {', '.join([parent, INDEX, *values])} from ({rows}){where})"


def child_table(dataset: str, name: str) -> str:
    """Return the name of a table of children within its layer."""
    return f"{dataset}__{name}"


@dataclass(frozen=True, config=CONFIG)
class Children:
    """An array column `from` whose elements are rows of a table of their own; `identity` names one in its record.

    `on_bad_child`: what a bad element rejects, its whole record or itself alone.
    """

    name: str
    column: Annotated[str, Field(alias="from")]
    identity: tuple[str, ...] = ()
    on_bad_child: Literal["reject_record", "reject_child"] = "reject_record"

    @property
    def rejects_alone(self) -> bool:
        return self.on_bad_child == "reject_child"

    def element(self, contract: Contract) -> Column | None:
        """Return what an element is; None when the column is no array of objects."""
        column = next((each for each in contract.columns if each.name == self.column), None)
        if column is None or column.kind.inside != "items" or not column.fields[0].kind.has_members:
            return None
        return column.fields[0]

    def fields(self, contract: Contract) -> dict[str, Column]:
        """Return the fields of an element by their names; none when the column is no array of objects."""
        element = self.element(contract)
        return {each.name: each for each in element.fields} if element else {}

    def elements(self, contract: Contract) -> Elements:
        return Elements(self.name, self.column, tuple(self.fields(contract)), self.rejects_alone)

    def findings(self, contract: Contract) -> Iterator[Finding]:
        element = self.element(contract)
        if element is None:
            arrays = ", ".join(each.name for each in contract.columns if each.kind.inside == "items")
            why = f"must be a column of contract.yaml that is an array of objects, is {shown(self.column)}"
            yield ("from",), f"{why}; arrays: {arrays or 'none'}"
            return
        if not element.required:
            why = f"an element of {self.column} may be null, which is no row; declare its items with required: true"
            yield ("from",), why
        fields = self.fields(contract)
        for n, name in enumerate(self.identity):
            if name not in fields:
                yield ("identity", n), f"{name!r} is not a field of {self.column}; fields: {', '.join(fields)}"
            elif not fields[name].required or fields[name].kind.no_key or fields[name].kind.is_nested:
                why = fields[name].kind.no_key or "a part of an identity needs required: true and one value"
                yield ("identity", n), f"{name} of {self.column} names no element: {why}"
            elif name in self.identity[:n]:
                yield ("identity", n), f"{name!r} occurs twice"
        taken = {each.name for each in contract.columns if each.name != self.column} | set(COORDINATES)
        for name in sorted(taken & fields.keys()):
            rename = f"{{name: {self.name.rstrip('s')}_{name}, physicalName: {name}}}"
            why = f"field {name} of {self.column} has the name of a column of the record"
            yield ("from",), f"{why}; name it otherwise: {rename}"
