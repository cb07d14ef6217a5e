"""Faults of the compose stack under load: after each, every record is accounted for and gold equals an oracle.

    python -m stack_tools.faults [--only kill,pause] [--fresh]   (`make stack-faults`)

Reads / Writes: the stack, with ports and volumes of its own project; .stack/faults/, a copy of the datasets.
Guarantee: it exits 0 only when after each fault the audit balances and gold equals the oracle.
After a crash: the same command continues with the next days of flights, as a second run does.

While a fault lasts, days of flights are sent by a container of their own. Recovery: from the end of the fault until
gold holds all that Kafka had then.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from include.ground.errors import HeadraceError, Terminal
from include.ground.settings import CLONE
from stack_tools.load import FIRST, Load
from stack_tools.oracle import departures_by_carrier
from stack_tools.site import DATASET, CommandFailed, StackSite, await_that, await_value

PROJECT, FOLDER = "headrace-faults", ".stack/faults"
# Other ports than the stack's, which may run next to it.
PORTS = {"AIRFLOW": "8090", "KAFKA": "9095", "CONSOLE": "8091", "PROMETHEUS": "9097", "ALERTMANAGER": "9098"}
LASTING = 60.0
# Events a second of two days: the load lasts somewhat longer than a fault of a minute, or 20 seconds.
SLOW, FAST = 75, 300
# Megabytes; a larger volume is not one that this script made.
LARGEST_VOLUME = 8000
# With them the container exceeds its limit while the driver lives, and not without the driver.
MEMORY_HOGS = "for i in $(seq 40); do python -S -c \"import time; x = b'x' * (60 << 20); time.sleep(20)\" & done; wait"
STREAMING = ("kafka", "postgres", "runner")
CORE = (
    *STREAMING,
    *("airflow-apiserver", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer", "console"),
)
OBSERVERS = ("metrics", "prometheus", "alertmanager")
# What the images of this repository run, in the order of a roll-out.
OURS = (*CORE[2:], OBSERVERS[0])
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


@dataclass(frozen=True)
class Fault:
    """A fault: how to inject it, and how fast events are sent meanwhile."""

    name: str
    inject: Callable[[], None]
    rate: int = FAST

    def survive(self, site: StackSite, load: Load) -> None:
        """Inject the fault under load; then wait, audit, compare, and print the recovery time."""
        began = time.monotonic()
        with load.days(self.rate):
            time.sleep(5)
            self.inject()
            over = time.monotonic()
            await_published(site)
            recovered = time.monotonic() - over
        site.headrace("wait", "--caught-up", "--dataset", DATASET, "--timeout", "600")
        await_that(lambda: site.are_healthy(*CORE, *OBSERVERS), "every service is healthy", 300)
        require_equal(site, load)
        print(
            f"{self.name:38} fault {over - began - 5:6.1f} s   recovered after {recovered:5.1f} s   "
            f"balanced, as the oracle   {time.monotonic() - began:6.1f} s in all",
            flush=True,
        )


def await_published(site: StackSite) -> None:
    """Wait until gold holds all records that Kafka has now, or as soon as Kafka answers."""
    sent = await_value(site.sent_records, "Kafka answers")
    await_that(lambda: site.published_records() >= sent, f"gold holds {sent} records", 600)


def require_equal(site: StackSite, load: Load) -> None:
    """Raise NotEqual unless the audit balances and gold equals the oracle."""
    if not site.is_balanced():
        raise NotEqual(site.headrace("audit", "--dataset", DATASET))
    rows = json.loads(site.headrace("query", GOLD, "--format", "json"))
    found = {row["carrier"]: row["departed"] for row in rows}
    expected = departures_by_carrier(FIRST, load.until)
    if found != expected:
        raise NotEqual(f"gold has {found}, the oracle {expected}")


def small_volume() -> str:
    """Return the device of the volume for the state folder: a file of 4 GB with a file system. Needs root."""
    image, device = CLONE / FOLDER / "state.img", CLONE / FOLDER / "state.device"
    if not image.exists():
        image.parent.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(4 << 30)
        subprocess.run(["mkfs.ext4", "-q", "-E", "root_owner=10001:10001", image], check=True)
    found = loop_devices(image)
    device.unlink(missing_ok=True)
    # The volume keeps the name of its device; the number of the loop device is another one after a boot.
    device.symlink_to(found[0] if found else output("losetup", "--find", "--show", str(image)).strip())
    return str(device)


def loop_devices(image: Path) -> list[str]:
    """Return the loop devices of a file."""
    return [line.partition(":")[0] for line in output("losetup", "--associated", str(image)).splitlines()]


def output(*words: str) -> str:
    """Return what a command of the system prints."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def remove(site: StackSite) -> None:
    """Remove the containers, volumes, datasets and device of earlier runs."""
    site.compose("--profile", "*", "down", "--volumes")
    for device in loop_devices(CLONE / FOLDER / "state.img"):
        output("losetup", "--detach", device)
    shutil.rmtree(CLONE / FOLDER, ignore_errors=True)


def start_stream(site: StackSite) -> None:
    """Request the stream, and wait until it runs: on a busy machine a driver takes longer than `up` waits."""
    with suppress(CommandFailed):
        site.headrace("up", DATASET)
    await_that(lambda: site.stream_state() == "running", "the stream runs", 600)


def kill(site: StackSite, *services: str) -> None:
    """Kill containers and start them again."""
    containers = [site.container(service) for service in services]
    site.run("docker", "kill", *containers)
    time.sleep(3)
    site.run("docker", "start", *containers)
    await_that(lambda: site.are_healthy(*services), f"{', '.join(services)}: healthy", 300)


def cut_off(site: StackSite) -> None:
    """Take Kafka off the network for a minute."""
    kafka, network = site.container("kafka"), f"{PROJECT}_default"
    site.run("docker", "network", "disconnect", network, kafka)
    time.sleep(LASTING)
    site.run("docker", "network", "connect", "--alias", "kafka", network, kafka)


def pause(site: StackSite, service: str) -> None:
    """Freeze a container for a minute."""
    container = site.container(service)

    def is_paused() -> bool:
        # The kernel cannot freeze a container in which a health check starts at that moment.
        with suppress(CommandFailed):
            site.run("docker", "pause", container)
            return True
        return False

    await_that(is_paused, f"{service} is paused", 60)
    time.sleep(LASTING)
    site.run("docker", "unpause", container)


def hit_memory_limit(site: StackSite) -> None:
    """Fill the runner's container with small processes until the kernel kills its largest one: the driver's JVM."""
    before = restarts(site)
    site.compose("exec", "-T", "--detach", "runner", "bash", "-c", MEMORY_HOGS)
    await_that(lambda: restarts(site) > before, "the driver was killed for want of memory", 180)


def restarts(site: StackSite) -> int:
    """Return how often the stream's driver was restarted."""
    found = {process["name"]: process["restarts"] for process in site.status("console")["processes"]}
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
    start_stream(site)


def down_and_up(site: StackSite) -> None:
    """Remove all containers and the network, keep the volumes, start everything."""
    site.compose("down", within=400)
    site.up()


def roll_out(site: StackSite) -> None:
    """Rebuild the images with a changed dataset, replace one service after the other, then ship the release."""
    site.add_column()
    (CLONE / "infra" / "rolled_out").write_text(f"{time.time()}\n")
    try:
        site.compose("build", within=1800.0)
        for service in OURS:
            site.compose("up", "--detach", "--no-deps", "--wait", "--force-recreate", service)
    finally:
        (CLONE / "infra" / "rolled_out").unlink()
    site.headrace("release", "run", "--dataset", DATASET, service="console", within=900)


def faults_of(site: StackSite) -> Sequence[Fault]:
    """Return the faults in their order."""
    return (
        *(Fault(f"kill {name}", partial(kill, site, name)) for name in STREAMING),
        Fault("kafka off its network for a minute", partial(cut_off, site), SLOW),
        Fault("kafka paused for a minute", partial(pause, site, "kafka"), SLOW),
        Fault("runner paused for a minute", partial(pause, site, "runner"), SLOW),
        Fault("memory limit of runner hit", partial(hit_memory_limit, site)),
        Fault("volume full for half a minute", partial(fill_volume, site)),
        Fault("compose down and up", partial(down_and_up, site), SLOW),
        Fault("images rebuilt and rolled out", partial(roll_out, site), SLOW),
        *(Fault(f"kill {name}", partial(kill, site, name)) for name in CORE[len(STREAMING) :]),
        Fault(f"kill {', '.join(OBSERVERS)}", partial(kill, site, *OBSERVERS)),
    )


def faults_site() -> StackSite:
    """Return the site of the faults: a project, ports and, for root, a small volume of their own."""
    environ = {"COMPOSE_PROJECT_NAME": PROJECT, "COMPOSE_PROFILES": "observability", "STACK_SAMPLE": "0"}
    environ |= {"STACK_DATASETS": f"{FOLDER}/datasets"} | {f"STACK_{name}_PORT": port for name, port in PORTS.items()}
    if os.geteuid() == 0:
        device = str(CLONE / FOLDER / "state.device")
        files = f"{os.environ.get('COMPOSE_FILE', 'docker-compose.yml')}:infra/stand-ins/small_volume.yaml"
        environ |= {"COMPOSE_FILE": files, "STACK_STATE_DEVICE": device}
    # Its own datasets and ports whatever is set: it changes a folder, and another stack may run.
    return StackSite({k: v for k, v in os.environ.items() if k.startswith("STACK_")} | environ)


def start(site: StackSite) -> None:
    """Start the stack and the stream."""
    if os.geteuid() == 0:
        small_volume()
    if not site.datasets.exists():
        shutil.copytree(CLONE / "include" / "datasets", site.datasets, ignore=shutil.ignore_patterns("__pycache__"))
    print(site.up(), flush=True)
    start_stream(site)


def main() -> int:
    """Run every fault, or those whose names contain a word of `--only`; return 1 at the first that is not survived."""
    parser = argparse.ArgumentParser(description="Faults of the compose stack under load.")
    parser.add_argument("--only", default="", help="comma-separated words of the names of faults")
    parser.add_argument("--fresh", action="store_true", help="remove the containers and volumes of earlier runs first")
    given = parser.parse_args()
    only, site = [word for word in given.only.split(",") if word], faults_site()
    chosen = [fault for fault in faults_of(site) if not only or any(word in fault.name for word in only)]
    try:
        if given.fresh:
            remove(site)
        start(site)
        load = Load.continued(site, len(chosen))
        print(f"the flights from {load.until:%F} on, two days for each of {len(chosen)} faults", flush=True)
        for fault in chosen:
            fault.survive(site, load)
        site.print_costs()
        site.compose("--profile", "*", "down")
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        print(
            f"  the containers were left as they are → docker compose -p {PROJECT} --profile '*' down", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
