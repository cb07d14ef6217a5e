"""A contract as its folder says it, against the standard and against the release that readers see."""

from __future__ import annotations

from dataclasses import dataclass

from include.catalog.contract import Contract
from include.catalog.contract_changes import ContractChange, contract_changes, is_version_enough, required_version
from include.catalog.dataset import DatasetUnknown, dataset_names, declared_dataset, released_dataset
from include.quality.odcs_standard import contract_problems
from include.reading.publication import find_publication
from include.settings import Settings


@dataclass(frozen=True)
class ContractCheck:
    """What is wrong with a contract (`problems`), and how it differs from that of `base`, the release readers see.

    `base` is None when nothing is published; `wanted_version` what its changes deserve, None where nobody can say.
    """

    dataset: str
    version: str | None
    problems: tuple[str, ...]
    base: str | None = None
    changes: tuple[ContractChange, ...] = ()
    required_version: str | None = None
    is_version_enough: bool = True

    @property
    def is_good(self) -> bool:
        """Whether it could be released as it is."""
        return not self.problems and self.is_version_enough


def check_contracts(settings: Settings, only: str | None = None) -> list[ContractCheck]:
    """Check every declared contract, or just one; DatasetUnknown, QualityNotInstalled."""
    known = dataset_names(settings)
    if only is not None and only not in known:
        raise DatasetUnknown(only, known)
    return [_checked(settings, name) for name in known if only in (None, name)]


def _checked(settings: Settings, name: str) -> ContractCheck:
    wrong = tuple(contract_problems(settings.datasets / name))
    if wrong:
        return ContractCheck(name, None, wrong)
    fresh, seen = declared_dataset(settings, name).contract, find_publication(settings, name)
    if seen is None:
        return ContractCheck(name, fresh.version, ())
    return compared_contract(name, seen.release, released_dataset(settings, name, seen.release).contract, fresh)


def compared_contract(name: str, release: str, base: Contract, fresh: Contract) -> ContractCheck:
    """Return how a contract differs from the one of a release, and whether its version says so."""
    found = contract_changes(base, fresh)
    wanted = required_version(base, found)
    return ContractCheck(
        name, fresh.version, (), release, tuple(found), wanted, is_version_enough(fresh.version, wanted)
    )
