"""What `headrace contract check` refuses, a plan refuses too, before anything is built.

One of its checks is made later: Great Expectations takes seconds to load, so rules with wrong arguments are refused by
the comparison of a plan, which evaluates them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from include.declare.contract import Contract, contract_changes, version_problem
from include.declare.contract_file import check_standard
from include.declare.dataset import Dataset
from include.declare.registry_check import registry_check
from include.declare.yaml_declarations import Document
from include.ground.errors import Terminal
from include.ground.optional_packages import QualityNotInstalled
from include.ground.settings import Settings


class FolderNotValid(Terminal):
    """`contract check` says that the folder is not valid; `problems` are its sentences."""

    def __init__(self, dataset: str, problems: list[str]) -> None:
        super().__init__(
            f"{dataset}: not valid: {'; '.join(problems)}; nothing was planned",
            f"headrace contract check --dataset {dataset}",
        )
        self.dataset, self.problems = dataset, problems


def refuse_invalid_folder(settings: Settings, declared: Dataset, published: Contract) -> None:
    """Raise FolderNotValid when the contract breaks its standard, a registered schema, or needs another version."""
    problems = [*_standard(declared), *registry_check(settings, declared)[0], *_version(declared, published)]
    if problems:
        raise FolderNotValid(declared.name, problems)


def _standard(declared: Dataset) -> list[str]:
    document = Document(declared.folder / "contract.yaml")
    with suppress(QualityNotInstalled):
        check_standard(document)
    return [str(problem) for problem in document.problems]


def _version(declared: Dataset, published: Contract) -> Iterator[str]:
    changes = contract_changes(published, declared.contract)
    if (why := version_problem(published, declared.contract, changes)) is not None:
        severe = (f"{each.kind}: {each.part} {each.why}" for each in changes if each.kind == changes[0].kind)
        yield f"{why} ({'; '.join(severe)})"
