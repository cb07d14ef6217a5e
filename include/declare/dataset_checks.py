"""All checks of declared folders, without Spark: for `contract check`, before processes start or plans are created."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from include.declare.analyses import analysis_files, analysis_problems
from include.declare.children import child_table
from include.declare.dataset import Dataset, dataset_names, declared_dataset
from include.declare.derived_dataset import derived_names
from include.declare.yaml_declarations import DeclarationRefused, Document, Problem
from include.ground.settings import Settings


def checked_dataset(settings: Settings, name: str) -> Dataset:
    """Return the dataset as its folder declares it now; raises DatasetUnknown, and DeclarationRefused as a whole."""
    dataset, problems = _checked(settings, name)
    if dataset is None or problems:
        raise DeclarationRefused(problems)
    return dataset


def dataset_problems(settings: Settings, name: str) -> list[Problem]:
    """Return all problems of a dataset's folder, derived or not, by file and line; raises DatasetUnknown."""
    if name in derived_names(settings):
        # sqlglot takes half a second to import: only those who check need it.
        from include.declare.derived_checks import derived_problems

        return derived_problems(settings, name)
    return sorted(_checked(settings, name)[1])


def validate_datasets(settings: Settings, names: Iterable[str]) -> None:
    """Raise DeclarationRefused with the problems of all these datasets; DatasetUnknown."""
    if problems := [problem for name in names for problem in dataset_problems(settings, name)]:
        raise DeclarationRefused(problems)


def _checked(settings: Settings, name: str) -> tuple[Dataset | None, list[Problem]]:
    # sqlglot takes half a second to import: only those who check need it.
    from include.declare.sql_checks import silver_code_problems, sql_problems

    try:
        dataset = declared_dataset(settings, name)
    except DeclarationRefused as error:
        return None, [*error.problems, *silver_code_problems(settings.datasets / name / "silver.py", None)]
    pipeline = Document(dataset.folder / "pipeline.yaml")
    code = silver_code_problems(dataset.folder / "silver.py", [table.name for table in dataset.pipeline.reference])
    problems = [*code, *sql_problems(pipeline, dataset.pipeline, dataset.contract)]
    problems += [*analysis_problems(dataset.folder), *_analysis_name_conflicts(settings, dataset)]
    return dataset, [*problems, *_gold_name_conflicts(settings, dataset, pipeline)]


def _gold_name_conflicts(settings: Settings, dataset: Dataset, pipeline: Document) -> Iterator[Problem]:
    """Yield the gold tables that another dataset declares too, and children named as one: readers know names alone."""
    for children in dataset.pipeline.children:
        if (name := child_table(dataset.name, children.name)) in dataset_names(settings):
            why = f"there is a dataset {name}, which has the table silver.{name}"
            yield pipeline.problem(("children", children.name), why)
    for other in dataset_names(settings):
        if other == dataset.name:
            continue
        gold = Document(settings.datasets / other / "pipeline.yaml", strict=False).value
        theirs = gold.get("gold") if isinstance(gold, dict) else None
        for table in dataset.pipeline.gold:
            if isinstance(theirs, dict) and table.name in theirs:
                why = f"dataset {other} has a gold table of this name; names are unique over all datasets"
                yield pipeline.problem(("gold", table.name), why)


def _analysis_name_conflicts(settings: Settings, dataset: Dataset) -> Iterator[Problem]:
    """Yield the analyses that another dataset declares too: readers know them by `analysis.<name>` alone."""
    for other in dataset_names(settings):
        theirs = () if other == dataset.name else [file.name for file in analysis_files(settings.datasets / other)]
        for path in analysis_files(dataset.folder):
            if path.name in theirs:
                why = f"dataset {other} has an analysis of this name; names are unique over all datasets"
                yield Problem(path, 1, "", why)
