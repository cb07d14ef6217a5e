"""Machines of their own on this one: User-Mode Linux, a kernel that is a process, with NFS between them.

Each has its own kernel, boot, processes and clock since boot; its root is this machine's file system, read-only. Root
and Debian's packages `user-mode-linux`, `nfs-kernel-server`, `nfs-common`, `busybox-static` and `iproute2` are needed.
The network is a namespace: rules that this machine has for bridges, as a Docker engine sets them, do not count there.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from namespaced_hosts import Subnet, run

from include.ground.settings import CLONE

KERNEL, MODULES = "/usr/bin/linux.uml", Path("/usr/lib/uml/modules")
AGENT = Path(__file__).with_name("machine_agent.py")
PORT = 7000
READY_WITHIN = 60.0
LEASE_SECONDS = 10
"""For how long the server keeps the locks of a client that it does not hear from; NFS's default is 90."""
START = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LANG=C.UTF-8 TMPDIR=/run
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /run
mount -t devtmpfs dev /dev
ln -s /proc/self/fd /dev/fd
mkdir /dev/shm && mount -t tmpfs tmp /dev/shm
hostname {name}
ip link set lo up
ip addr add {address}/24 dev vec0
ip link set vec0 up
exec {python} {agent} {port}
"""
SERVE = """
mount /dev/ubda /srv && mount -t tmpfs tmp /var/lib/nfs && mkdir /var/lib/nfs/v4recovery
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t nfsd nfsd /proc/fs/nfsd
exportfs -o rw,no_root_squash,fsid=0,no_subtree_check '*:/srv'
rpc.mountd -N 3
rpc.nfsd -N 3 -V 4.2 --lease-time {seconds} --grace-time {seconds} 4
"""


@dataclass
class Machine:
    """A machine by its process outside; `environment` is that of its commands."""

    name: str
    address: str
    process: subprocess.Popen[bytes]
    environment: Mapping[str, str] = field(default_factory=dict)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the agent's answer to a request."""
        with socket.create_connection((self.address, PORT), 10) as connection:
            connection.settimeout(300)
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(connection.makefile().readline())
        assert isinstance(answer, dict)
        return answer

    def execute(self, *words: str, **more: str) -> tuple[int, str]:
        """Run a command in the clone; return its exit code and all output."""
        environment = {**self.environment, **more}
        answer = self.ask(argv=words, env={"PATH": os.environ["PATH"], **environment}, cwd=str(CLONE))
        return answer["code"], answer["output"] + answer["errors"]

    def shell(self, script: str) -> str:
        """Run a script; AssertionError with its output when it fails."""
        answer = self.ask(argv=["sh", "-ec", script])
        assert answer["code"] == 0, f"{self.name}: {script}\n{answer}"
        return str(answer["output"])

    def start(self, log: str, *words: str) -> int:
        """Start a command in the background with a log in the machine's memory; return its pid there."""
        environment = {"PATH": os.environ["PATH"], **self.environment}
        return int(self.ask(argv=words, env=environment, cwd=str(CLONE), log=log)["pid"])

    def load(self, *modules: str) -> None:
        """Load modules of the kernel with all that they need."""
        (folder,) = MODULES.iterdir()
        needs = dict(line.split(":", 1) for line in (folder / "modules.dep").read_text().splitlines())
        paths = [
            path for name in modules for path in [*reversed(needs[f"kernel/{name}.ko"].split()), f"kernel/{name}.ko"]
        ]
        loading = [f"busybox insmod {folder / path}" for path in dict.fromkeys(paths)]
        self.shell("\n".join(loading))

    def serve(self) -> None:
        """Become an NFS server of the machine's disk."""
        self.load("fs/nfsd/nfsd")
        self.shell(SERVE.format(seconds=LEASE_SECONDS))

    def mount(self, server: Machine, folder: Path) -> None:
        """Mount the server's disk, with the options that a client has by default."""
        self.load("fs/nfs/nfsv4")
        self.shell(f"mount.nfs4 {server.address}:/ {shlex.quote(str(folder))} -o vers=4.2")

    def kill(self) -> None:
        """Switch the machine off."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@dataclass
class MachineNetwork(Subnet):
    """A network with this machine and those that it starts."""

    name: str
    folder: Path
    machines: list[Machine] = field(default_factory=list)

    def add(self, name: str, memory: str, disk: Path | None = None) -> Machine:
        """Start a machine; return it when its agent answers."""
        number = len(self.machines) + 2
        address, cable = f"{self.prefix}.{number}", f"tap{number}"
        run("ip", "-n", self.name, "tuntap", "add", cable, "mode", "tap")
        run("ip", "-n", self.name, "link", "set", cable, "master", "br0", "up")
        start = self.folder / f"{name}.sh"
        own = {"python": shlex.quote(sys.executable), "agent": shlex.quote(str(AGENT)), "port": PORT}
        start.write_text(START.format(name=name, address=address, **own))
        start.chmod(0o755)
        words = ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={start}", f"mem={memory}"]
        words += [f"vec0:transport=tap,ifname={cable},depth=128,gro=1", "con=null", "con0=null,fd:1"]
        words += [f"uml_dir={self.folder}/", f"umid={name}", *([f"ubd0={disk}"] if disk else [])]
        with (self.folder / f"{name}.console").open("wb") as console:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, KERNEL, *words],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        machine = Machine(name, address, process)
        self.machines.append(machine)
        self._await(machine)
        return machine

    def _await(self, machine: Machine) -> None:
        end = time.monotonic() + READY_WITHIN
        while True:
            with suppress(OSError):
                machine.ask(argv=["true"])
                return
            console = (self.folder / f"{machine.name}.console").read_text(errors="replace")
            assert machine.process.poll() is None, f"{machine.name} has ended\n{console}"
            assert time.monotonic() < end, f"{machine.name} does not answer\n{console}"
            time.sleep(0.1)


@contextmanager
def machine_network(folder: Path) -> Iterator[MachineNetwork]:
    """Yield a network; end all machines afterwards. `folder` has what the kernels print."""
    name = f"hr{secrets.token_hex(3)}"
    network = MachineNetwork(name, folder)
    run("ip", "netns", "add", name)
    try:
        run("ip", "-n", name, "link", "add", "br0", "type", "bridge")
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "cable", "netns", name)
        for words in (("set", "br0", "up"), ("set", "cable", "master", "br0", "up")):
            run("ip", "-n", name, "link", *words)
        run("ip", "addr", "add", f"{network.address}/24", "dev", name)
        run("ip", "link", "set", name, "up")
        yield network
    finally:
        for machine in reversed(network.machines):
            machine.kill()
        run("ip", "netns", "del", name)


def disk_image(path: Path, size: str) -> Path:
    """Create a disk with an empty ext4 file system."""
    run("truncate", "-s", size, str(path))
    run("mkfs.ext4", "-q", str(path))
    return path
