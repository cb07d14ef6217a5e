"""A receiver of OpenLineage events over HTTP, and a walk over what it has received."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from json_receiver import JsonReceiver
from openlineage_schemas import schema_problems

Node = tuple[str, str]
"""Namespace and name of a dataset."""


class LineageReceiver(JsonReceiver):
    """A receiver whose events must all be valid by the specification."""

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.posted

    @contextmanager
    def up(self) -> Iterator[None]:
        with super().up():
            yield
        assert [problem for event in self.events for problem in schema_problems(event)] == []

    def of(self, job: str, state: str = "COMPLETE") -> list[dict[str, Any]]:
        return [each for each in self.events if each["job"]["name"] == job and each.get("eventType", state) == state]

    @property
    def jobs(self) -> list[str]:
        return list(dict.fromkeys(each["job"]["name"] for each in self.events))

    def run_ids(self, job: str) -> list[str]:
        return list(dict.fromkeys(each["run"]["runId"] for each in self.events if each["job"]["name"] == job))


def edges(events: list[dict[str, Any]]) -> dict[Node, set[Node]]:
    """Return the datasets that each dataset is made of, by the inputs and outputs of jobs."""
    found: dict[Node, set[Node]] = defaultdict(set)
    for event in events:
        sources = {(each["namespace"], each["name"]) for each in event["inputs"]}
        for each in event["outputs"]:
            found[each["namespace"], each["name"]] |= sources
    return found


def column_edges(events: list[dict[str, Any]]) -> dict[tuple[str, str, str], set[tuple[str, str, str]]]:
    """Return the columns that each column is made of: namespace, dataset, field."""
    found: dict[tuple[str, str, str], set[tuple[str, str, str]]] = defaultdict(set)
    for event in events:
        for output in event["outputs"]:
            lineage = output["facets"].get("columnLineage", {"fields": {}})
            for column, made in lineage["fields"].items():
                key = output["namespace"], output["name"], column
                found[key] |= {(i["namespace"], i["name"], i["field"]) for i in made["inputFields"]}
    return found


def reached(start: Any, graph: dict[Any, set[Any]]) -> set[Any]:
    """Return all that a node is made of, directly or not."""
    found: set[Any] = set()
    waiting = [start]
    while waiting:
        fresh = graph.get(waiting.pop(), set()) - found
        found |= fresh
        waiting += fresh
    return found
