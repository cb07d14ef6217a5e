"""Machines with kernels of their own share a folder over NFS: commits that race, and a lease of a machine switched off.

This machine's kernel needs no NFS: the machines run the code, and print what they found.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hold_lease import HELD
from linux_machines import LEASE_SECONDS, Machine, MachineNetwork, disk_image, machine_network
from recovery_site import wait_until

pytestmark = [pytest.mark.extended, pytest.mark.timeout(300)]
FOLDER = Path(__file__).parent
VARIABLES = {"PYTHONPATH": ".", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": "/run"}
COMMITS = 200


@dataclass
class Shared:
    """A folder that is the disk of `server`."""

    folder: Path
    network: MachineNetwork
    server: Machine

    def add_machine(self, name: str) -> Machine:
        """Start a machine that mounts the folder."""
        machine = self.network.add(name, "512M")
        machine.environment = VARIABLES
        machine.mount(self.server, self.folder)
        return machine


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """An NFS server."""
    root = tmp_path_factory.mktemp("nfs")
    for name in ("shared", "consoles"):
        (root / name).mkdir()
    with machine_network(root / "consoles") as network:
        server = network.add("server", "512M", disk_image(root / "disk", "1G"))
        server.serve()
        yield Shared(root / "shared", network, server)


@pytest.fixture(scope="module")
def machines(shared: Shared) -> list[Machine]:
    """Two machines that have the folder."""
    return [shared.add_machine(name) for name in ("host1", "host2")]


def test_each_version_is_committed_by_one_machine(shared: Shared, machines: list[Machine]) -> None:
    script = (sys.executable, str(FOLDER / "race_commits.py"), str(shared.folder / "race"), str(COMMITS), "2")
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda machine: machine.execute(*script), machines))
    assert [code for code, _ in done] == [0, 0], done
    won = [json.loads(output) for _, output in done]
    assert all(won), "both machines have committed"
    assert sorted(won[0] + won[1]) == list(range(COMMITS))
    print(f"{COMMITS} versions, each committed once: {len(won[0])} and {len(won[1])}")


def test_lease_of_a_machine_excludes_the_other_until_it_is_switched_off(
    shared: Shared, machines: list[Machine]
) -> None:
    first, second = machines
    holding = (sys.executable, str(FOLDER / "hold_lease.py"), str(shared.folder / "test.lease"))
    assert second.execute(*holding, "0") == (0, "1\n")
    first.start("/run/lease.log", *holding, "600")
    wait_until(lambda: first.shell("cat /run/lease.log") == "2\n", "the first machine has the lease", within=60)
    assert second.execute(*holding, "0") == (HELD, "")
    first.kill()
    begun = time.monotonic()
    wait_until(lambda: second.execute(*holding, "0") == (0, "3\n"), "it is free", within=90)
    seconds = time.monotonic() - begun
    print(f"free {seconds:.1f} s after the machine was switched off; the server keeps locks for {LEASE_SECONDS} s")
