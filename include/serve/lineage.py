"""The lineage of tables as a drawing: nodes in columns by their distance from a topic, edges between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from include.declare.dataset import CODE, dataset_names, declared_dataset
from include.declare.derived_dataset import (
    REFERENCE,
    LineageEdge,
    declared_derived,
    derived_edges,
    derived_names,
    lineage_edges,
)
from include.ground.errors import HeadraceError
from include.ground.settings import Settings
from include.read.published_tables import pinned
from include.serve.pages import Shared, page

NODE_WIDTH, NODE_HEIGHT = 168, 36
COLUMN, ROW, MARGIN = 232, 52, 16
LONGEST_NAME = 24
routes = APIRouter()


@dataclass(frozen=True)
class LineageNode:
    """A topic or a table at `x`, `y`; `link` is its page, "" without one."""

    name: str
    label: str
    kind: str
    x: float
    y: float
    link: str


@routes.get("/lineage")
def lineage(request: Request, console: Shared) -> HTMLResponse:
    """Return the drawing of all declared datasets, and the same as rows; published tables have a page."""
    edges, notes = known_edges(console.settings)
    nodes = placed_nodes(edges, sorted(pinned(console.settings).tables))
    at = {node.name: node for node in nodes}
    return page(
        *(request, "lineage", "Lineage", "Lineage"),
        width=max((node.x for node in nodes), default=0) + NODE_WIDTH + MARGIN,
        height=max((node.y for node in nodes), default=0) + NODE_HEIGHT + MARGIN,
        nodes=nodes,
        curves=[(_path(at[e.source], at[e.target]), f"{e.source} → {e.target}: {e.by}") for e in edges],
        edges=[(edge.source, edge.target, edge.by) for edge in edges],
        notes=notes,
    )


_known: dict[Path, tuple[object, tuple[list[LineageEdge], list[str]]]] = {}


def known_edges(settings: Settings) -> tuple[list[LineageEdge], list[str]]:
    """Return the edges of all datasets, and notes; folders are read again only when a file of theirs has changed."""
    files = sorted(path for path in settings.datasets.glob("*/**/*") if path.suffix in CODE)
    state = [(path, path.stat().st_mtime_ns) for path in files]
    known = _known.get(settings.datasets)
    if known is None or known[0] != state:
        notes: list[str] = []
        known = _known[settings.datasets] = (state, (list(declared_edges(settings, notes)), notes))
    return known[1]


def declared_edges(settings: Settings, notes: list[str]) -> Iterator[LineageEdge]:
    """Yield the edges of all datasets; a folder that cannot be read becomes a note."""
    for name in dataset_names(settings):
        try:
            yield from lineage_edges(declared_dataset(settings, name))
        except HeadraceError as error:
            notes.append(error.what)
    for name in derived_names(settings):
        try:
            yield from derived_edges(declared_derived(settings, name))
        except HeadraceError as error:
            notes.append(error.what)


def placed_nodes(edges: Sequence[LineageEdge], published: Sequence[str]) -> list[LineageNode]:
    """Return the nodes: a column for each distance from a source, in each column a place below the first free one."""
    columns = _columns(edges)
    order = list(dict.fromkeys(name for edge in edges for name in (edge.source, edge.target)))
    heights: dict[int, float] = {}
    found: list[LineageNode] = []
    for name in order:
        column = columns[name]
        row = max(heights.get(column, 0), _first_parent(name, edges, found))
        heights[column] = row + 1
        x, y = MARGIN + column * COLUMN, MARGIN + row * ROW
        link = f"/tables/{name}" if name in published else ""
        kind = _kind(name)
        found.append(LineageNode(name, _label(name.removeprefix(f"{kind} ")), kind, x, y, link))
    return found


def _label(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _columns(edges: Sequence[LineageEdge]) -> Mapping[str, int]:
    """Return for each node the greatest number of edges from a source; a table is to the right of all its sources."""
    columns = {name: 0 for edge in edges for name in (edge.source, edge.target)}
    for _ in range(len(columns)):
        before = dict(columns)
        for edge in edges:
            # Reference tables are next to bronze, whose records they are joined with.
            least = 2 if edge.source.startswith(REFERENCE) else columns[edge.source] + 1
            columns[edge.target] = max(columns[edge.target], least)
        if columns == before:
            break
    return {name: 1 if name.startswith(REFERENCE) else column for name, column in columns.items()}


def _first_parent(name: str, edges: Sequence[LineageEdge], placed: Sequence[LineageNode]) -> float:
    rows = {node.name: (node.y - MARGIN) / ROW for node in placed}
    return min((rows[edge.source] for edge in edges if edge.target == name and edge.source in rows), default=0)


def _kind(name: str) -> str:
    return "topic" if name.startswith("topic ") else "reference" if name.startswith(REFERENCE) else name.split(".")[0]


def _path(source: LineageNode, target: LineageNode) -> str:
    x, y = source.x + NODE_WIDTH, source.y + NODE_HEIGHT / 2
    to_x, to_y = target.x, target.y + NODE_HEIGHT / 2
    middle = (x + to_x) / 2
    return f"M{x:.0f},{y:.0f} C{middle:.0f},{y:.0f} {middle:.0f},{to_y:.0f} {to_x:.0f},{to_y:.0f}"
