"""Faults of the compose stack under load: after each, every record is accounted for and gold equals an oracle.

    python -m infra.stack_faults [--only kill,pause]   (`make stack-faults`)

Reads / Writes: the stack, with volumes of its own project; .stack/faults/, a copy of the datasets.
Guarantee: it exits 0 only when after each fault the audit balances and gold equals the oracle.
After a crash: the same command continues with the next days of flights.

While a fault lasts, three days of flights are sent by a container of their own. Recovery: from the end of the fault
until gold holds everything.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from include.errors import HeadraceError, Terminal
from include.settings import CLONE
from infra.stack_oracle import departures_by_carrier
from infra.stack_site import DATASET, CommandFailed, StackSite, await_that

FOLDER = ".stack/faults"
FIRST = datetime(2013, 1, 1)  # noqa: DTZ001  (days of the feed, which are UTC)
DAYS, RATE, LASTING = 3, 120, 60.0
LOAD = "headrace-load"
FINISHED = "which is finished"
# Megabytes; a larger volume is not one that this script made.
LARGEST_VOLUME = 8000
EATERS = "for i in $(seq 60); do python -S -c \"import time; x = b'x' * (60 << 20); time.sleep(20)\" & done; wait"
SERVICES = (
    *("kafka", "postgres", "runner", "airflow-apiserver", "airflow-scheduler"),
    *("airflow-dag-processor", "airflow-triggerer"),
)
GOLD = "select carrier, sum(departed)::bigint as departed from gold.carrier_hours group by carrier having departed > 0"


class VolumeShared(Terminal):
    """The volume of the state folder is not a small one of its own: filling it would fill the machine's disk."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the volume of the state folder has {size} MB; it was not filled, nor anything else on its disk",
            "as root: make stack-faults   (it makes a small one)",
        )


class NotEqual(Terminal):
    """After a fault a record is missing, or gold differs from the oracle."""


@dataclass
class FaultRun:
    """The stack under load, and how far the feed was sent."""

    site: StackSite
    until: datetime = field(default=FIRST)

    def under(self, name: str, fault: Callable[[], None]) -> None:
        """Send days of flights while the fault happens; then wait, audit, compare, and print the recovery time."""
        began = time.monotonic()
        with self.load():
            time.sleep(5)
            fault()
            over = time.monotonic()
        self.site.headrace("wait", "--caught-up", "--dataset", DATASET, "--timeout", "600")
        recovered = time.monotonic() - over
        await_that(lambda: all(map(self.site.is_healthy, SERVICES)), "every service is healthy", 300)
        self.require_equal()
        lasted = over - began
        print(
            f"{name:44} fault {lasted:6.1f} s   recovered after {recovered:6.1f} s   balanced, as the oracle",
            flush=True,
        )

    @contextmanager
    def load(self) -> Iterator[None]:
        """Send the next days by a container of their own; at the end, wait until all of it is sent."""
        since, self.until = self.until, self.until + timedelta(days=DAYS)
        words = [
            "produce",
            DATASET,
            "--from",
            f"{since:%F}",
            "--to",
            f"{self.until:%F}",
            "--rate",
            str(RATE),
            "--quiet",
        ]
        words += ["--manifest", f"/state/load-{since:%F}.jsonl"]
        sending = ("run", "--rm", "--no-deps", "-T", "--name", LOAD)
        with suppress(CommandFailed):
            self.site.run("docker", "rm", "--force", LOAD)
        self.site.compose(*sending, "--detach", "runner", "headrace", *words)
        yield
        with_container = ("docker", "ps", "--quiet", "--filter", f"name={LOAD}")
        await_that(lambda: not self.site.run(*with_container).strip(), "the load is sent", 300)
        # What an interrupted sender did not deliver is sent now; the manifest of a finished one is refused.
        try:
            self.site.compose(*sending, "runner", "headrace", *words)
        except CommandFailed as error:
            if FINISHED not in error.output:
                raise

    def require_equal(self) -> None:
        """Raise NotEqual unless the audit balances and gold equals the oracle."""
        if not self.site.is_balanced():
            raise NotEqual(self.site.headrace("audit", "--dataset", DATASET))
        rows = json.loads(self.site.headrace("query", GOLD, "--format", "json"))
        found = {row["carrier"]: row["departed"] for row in rows}
        expected = departures_by_carrier(FIRST, self.until)
        if found != expected:
            raise NotEqual(f"gold has {found}, the oracle {expected}")


def small_volume() -> str:
    """Return the device of the volume for the state folder: a file of 4 GB with a file system. Needs root."""
    image = CLONE / FOLDER / "state.img"
    if not image.exists():
        image.parent.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(4 << 30)
        subprocess.run(["mkfs.ext4", "-q", "-E", "root_owner=10001:10001", image], check=True)
    found = subprocess.run(["losetup", "--associated", image], check=True, capture_output=True, text=True).stdout
    command = ["losetup", "--find", "--show", str(image)]
    return found.partition(":")[0] or subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def start_stream(site: StackSite) -> None:
    """Request the stream, and wait until it runs: on a busy machine a driver takes longer than `up` waits."""
    with suppress(CommandFailed):
        site.headrace("up", DATASET)
    await_that(lambda: site.stream_state() == "running", "the stream runs", 600)


def kill(site: StackSite, service: str) -> None:
    """Kill a container and start it again."""
    site.run("docker", "kill", site.container(service))
    time.sleep(3)
    site.run("docker", "start", site.container(service))
    await_that(lambda: site.is_healthy(service), f"{service} is healthy", 300)


def cut_off(site: StackSite) -> None:
    """Take Kafka off the network for a minute."""
    kafka, network = site.container("kafka"), "headrace-faults_default"
    site.run("docker", "network", "disconnect", network, kafka)
    time.sleep(LASTING)
    site.run("docker", "network", "connect", "--alias", "kafka", network, kafka)


def pause(site: StackSite, service: str) -> None:
    """Freeze a container for a minute."""
    site.run("docker", "pause", site.container(service))
    time.sleep(LASTING)
    site.run("docker", "unpause", site.container(service))


def hit_memory_limit(site: StackSite) -> None:
    """Fill the runner's container with small processes until the kernel kills its largest one: the driver's JVM."""
    before = restarts(site)
    site.compose("exec", "-T", "--detach", "runner", "bash", "-c", EATERS)
    await_that(lambda: restarts(site) > before, "the driver was killed for want of memory", 180)


def restarts(site: StackSite) -> int:
    """Return how often the stream's driver was restarted."""
    found = {process["name"]: process["restarts"] for process in site.status("airflow-triggerer")["processes"]}
    return int(found[f"stream:{DATASET}"])


def fill_volume(site: StackSite) -> None:
    """Leave no block free on the volume of the state folder for half a minute."""
    size = int(site.compose("exec", "-T", "runner", "df", "--output=size", "-BM", "/state").split()[-1].rstrip("M"))
    if size > LARGEST_VOLUME:
        raise VolumeShared(size)
    fill = "dd if=/dev/zero of=/state/logs/filler bs=1M 2>/dev/null; df --output=avail /state | tail -1"
    left = site.compose("exec", "-T", "runner", "bash", "-c", fill)
    print(f"  volume full: {left.split()[-1]} KB left", flush=True)
    time.sleep(LASTING / 2)
    site.compose("exec", "-T", "runner", "rm", "/state/logs/filler")
    # What was given up for want of space starts again.
    site.headrace("up", DATASET)


def down_and_up(site: StackSite) -> None:
    """Remove all containers and the network, keep the volumes, start everything."""
    site.compose("down", within=400)
    site.script("up")


def roll_out(site: StackSite) -> None:
    """Rebuild the images with a changed dataset, replace one service after the other, then ship the release."""
    path = site.datasets / DATASET / "silver.py"
    text = path.read_text("utf-8")
    path.write_text(
        text.replace('"stage", "airline",', '"stage", F.length("dest").alias("dest_length"), "airline",'), "utf-8"
    )
    (CLONE / "infra" / "runner" / "rolled_out").write_text(f"{time.time()}\n")
    try:
        site.script("build")
        for service in SERVICES[2:]:
            site.compose("up", "--detach", "--no-deps", "--wait", "--force-recreate", service)
    finally:
        (CLONE / "infra" / "runner" / "rolled_out").unlink()
    site.headrace("release", "run", "--dataset", DATASET, service="airflow-scheduler", within=900)


def main() -> int:
    """Run every fault, or those whose names contain a word of `--only`; return 1 at the first that is not survived."""
    parser = argparse.ArgumentParser(description="Faults of the compose stack under load.")
    parser.add_argument("--only", default="", help="comma-separated words of the names of faults")
    only = [word for word in parser.parse_args().only.split(",") if word]
    environ = {"COMPOSE_PROJECT_NAME": "headrace-faults", "STACK_DATASETS": f"{FOLDER}/datasets"}
    if os.geteuid() == 0:
        environ |= {"STACK_OVERRIDE": "infra/stand-ins/small_volume.yaml", "STACK_STATE_DEVICE": small_volume()}
    site = StackSite({**environ, **{k: v for k, v in os.environ.items() if k.startswith("STACK_")}})
    if not site.datasets.exists():
        shutil.copytree(CLONE / "include" / "datasets", site.datasets, ignore=shutil.ignore_patterns("__pycache__"))
    faults: dict[str, Callable[[], None]] = {f"kill {name}": partial(kill, site, name) for name in SERVICES}
    faults |= {
        "kafka off its network for a minute": lambda: cut_off(site),
        "kafka paused for a minute": lambda: pause(site, "kafka"),
        "runner paused for a minute": lambda: pause(site, "runner"),
        "memory limit of runner hit": lambda: hit_memory_limit(site),
        "volume full for half a minute": lambda: fill_volume(site),
        "compose down and up": lambda: down_and_up(site),
        "images rebuilt and rolled out": lambda: roll_out(site),
    }
    try:
        site.script("up")
        start_stream(site)
        run = FaultRun(site)
        for name, fault in faults.items():
            if not only or any(word in name for word in only):
                run.under(name, fault)
    except (HeadraceError, CommandFailed) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
