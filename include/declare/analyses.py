"""Analyses of a dataset: `analysis/<name>.yaml`, an algorithm over rows that an SQL query reads from published tables.

They are not part of a release: an analysis reads what is published, and changes no table of the dataset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field

from include.declare.dataset import ANALYSES
from include.declare.yaml_declarations import NAME, NAME_RULE, Declared, Document, Problem, raise_problems, shown
from include.ground.errors import Refused
from include.ground.settings import Settings


class PageRank(Declared):
    """Rank of each node of a graph; the query has the columns `source`, `target` and `weight` (above 0)."""

    algorithm: Literal["pagerank"]
    query: str
    damping: Annotated[float, Field(gt=0, lt=1)] = 0.85
    tolerance: Annotated[float, Field(gt=0)] = 1e-9
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 200


class Components(Declared):
    """Connected components of an undirected graph; the query has the columns `source` and `target`."""

    algorithm: Literal["components"]
    query: str
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 1000


class Closure(Declared):
    """All pairs of nodes where the first reaches the second, with the number of edges; columns `source`, `target`."""

    algorithm: Literal["closure"]
    query: str
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 100


class KMeans(Declared):
    """Clusters of rows by their standardized `features`; the query also has the column `key`."""

    algorithm: Literal["kmeans"]
    query: str
    key: str
    features: Annotated[list[str], Field(min_length=1)]
    clusters: Annotated[int, Field(ge=2, le=1000)]
    iterations: Annotated[int, Field(ge=1, le=1000)] = 50
    seed: int = 1


class Recommendations(Declared):
    """The best items of each user by alternating least squares; columns `user`, `item` and `rating`."""

    algorithm: Literal["als"]
    query: str
    top: Annotated[int, Field(ge=1, le=1000)] = 5
    rank: Annotated[int, Field(ge=1, le=500)] = 8
    iterations: Annotated[int, Field(ge=1, le=200)] = 10
    seed: int = 1


Declaration: Any = Annotated[PageRank | Components | Closure | KMeans | Recommendations, Discriminator("algorithm")]
Algorithm = PageRank | Components | Closure | KMeans | Recommendations


@dataclass(frozen=True)
class Analysis:
    """One declared analysis; `code` is the hash of its file."""

    dataset: str
    name: str
    declared: Algorithm
    code: str


def declared_analyses(settings: Settings, dataset: str) -> dict[str, Analysis]:
    """Return the analyses of a dataset's folder by name. Raises DeclarationRefused."""
    found, documents = dict[str, Analysis](), list[Document]()
    for path in analysis_files(settings.datasets / dataset):
        document = Document(path, strict=True)
        declared = _read(document)
        documents.append(document)
        if declared is not None:
            code = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
            found[path.stem] = Analysis(dataset, path.stem, declared, code)
    raise_problems(*documents)
    return found


def declared_analysis(settings: Settings, dataset: str, name: str) -> Analysis:
    """Return an analysis. Raises Refused, DeclarationRefused."""
    known = declared_analyses(settings, dataset)
    if name not in known:
        listed = ", ".join(known) or f"none; declare one in {dataset}/{ANALYSES}/{name}.yaml"
        what = f"{dataset} has no analysis {name!r}; nothing was started"
        raise Refused(what, f"declared: {listed}", code="analysis-unknown", known=list(known))
    return known[name]


def analysis_problems(folder: Path) -> Iterator[Problem]:
    """Yield what is wrong with the analyses of a dataset's folder."""
    for path in analysis_files(folder):
        document = Document(path, strict=True)
        _read(document)
        yield from document.problems


def analysis_files(folder: Path) -> list[Path]:
    """Return the files that declare analyses, by name."""
    return sorted((folder / ANALYSES).glob("*.yaml"))


def _read(document: Document) -> Algorithm | None:
    if not NAME.fullmatch(document.path.stem):
        document.refuse((), f"the file's name {NAME_RULE}, is {shown(document.path.stem)}")
    found: Algorithm | None = document.parsed(Declaration)
    if found is not None and (why := _query_fault(found.query)):
        document.refuse(("query",), why)
    return found


def _query_fault(query: str) -> str:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        trees = [tree for tree in sqlglot.parse(query, dialect="duckdb") if tree is not None]
    except SqlglotError as error:
        return f"is not SQL of DuckDB: {str(error).splitlines()[0]}"
    return "" if len(trees) == 1 and isinstance(trees[0], exp.Query) else "must be one query that reads"
