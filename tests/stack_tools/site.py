"""The running compose stack from outside: its services, `headrace` in a container, Airflow's REST API, its sizes.

Reads: docker compose.  Writes: nothing by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from include.ground.errors import Terminal, Transient
from include.ground.settings import CLONE
from stack_tools.airflow_rest import AirflowRest

USER = "admin"
PROJECT = "headrace"
LABEL = "com.docker.compose"
DATASET = "flights"
AUDITED = "balanced"
# As the shell's `timeout`.
TIMED_OUT = 124
Answer = TypeVar("Answer")


class CommandFailed(Terminal):
    """A command of the stack failed; `output` is what it printed."""

    def __init__(self, words: tuple[str, ...], code: int, output: str) -> None:
        super().__init__(f"`{' '.join(words)}` ended with {code}\n{output[-3000:]}")
        self.output = output


class StateNotReached(Transient):
    """A state was not reached in time."""


@dataclass(frozen=True)
class StackSite:
    """The stack of a clone, with `environ`: COMPOSE_PROJECT_NAME, STACK_DATASETS, ports."""

    environ: Mapping[str, str]
    clone: Path = CLONE

    def run(self, *words: str, within: float = 900.0) -> str:
        """Run a command in the clone and return its output. Raises CommandFailed."""
        try:
            done = subprocess.run(
                words, cwd=self.clone, env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=within,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(words, TIMED_OUT, f"it was ended after {within:.0f} s\n{error.output or ''}") from error
        if done.returncode:
            raise CommandFailed(words, done.returncode, done.stdout)
        return done.stdout

    def compose(self, *words: str, within: float = 900.0) -> str:
        """Run `docker compose`."""
        return self.run("docker", "compose", *words, within=within)

    def up(self) -> str:
        """Build the images, start the stack, and wait until every service is healthy; return how long that took."""
        self.compose("build", within=1800.0)
        began = time.monotonic()
        self.compose("up", "--detach", "--wait")
        return f"healthy after {time.monotonic() - began:.0f} s"

    def headrace(self, *words: str, service: str = "runner", within: float = 1800.0) -> str:
        """Run `headrace …` in a container of the stack."""
        return self.compose("exec", "-T", service, "headrace", *words, within=within)

    def containers(self, *options: str) -> list[str]:
        """Return lines of `docker ps` about the containers of services, without those of `compose run`."""
        project = self.environ.get("COMPOSE_PROJECT_NAME", PROJECT)
        labels = (f"project={project}", "oneoff=False")
        filters = [word for label in labels for word in ("--filter", f"label={LABEL}.{label}")]
        return self.run("docker", "ps", "--all", *filters, *options).splitlines()

    def container(self, service: str) -> str:
        """Return the id of a service's container."""
        return self.containers("--quiet", "--filter", f"label={LABEL}.service={service}")[0]

    def are_healthy(self, *services: str) -> bool:
        """Return whether each of the services runs and Docker reports it healthy."""
        form = f'{{{{.Label "{LABEL}.service"}}}} {{{{.Status}}}}'
        with suppress(CommandFailed):
            found = dict(line.split(" ", 1) for line in self.containers("--format", form))
            return all("(healthy)" in found.get(name, "") for name in services)
        return False

    def status(self, service: str = "runner") -> dict[str, Any]:
        """Return what `headrace status --json` prints in a container."""
        return dict(json.loads(self.headrace("status", "--json", service=service).splitlines()[-1]))

    def stream_state(self, service: str = "runner") -> str:
        """Return the state of the stream as a container sees it."""
        found = {process["name"]: process["state"] for process in self.status(service)["processes"]}
        return str(found[f"stream:{DATASET}"])

    def sent_records(self) -> int | None:
        """Return how many records the topic has, None while Kafka or the runner's container does not answer."""
        with suppress(CommandFailed):
            found = self.status()["datasets"][DATASET]["rows"]["kafka"]
            return None if found is None else int(found)
        return None

    def published_records(self) -> int:
        """Return how many records of the topic the publication covers; 0 while the container does not answer."""
        path = f"/state/warehouse/{DATASET}/publication.json"
        with suppress(CommandFailed):
            found = json.loads(self.compose("exec", "-T", "runner", "cat", path))
            return sum(map(int, found["offsets"].values()))
        return 0

    def is_balanced(self) -> bool:
        """Return whether the audit balances every record."""
        with suppress(CommandFailed):
            return AUDITED in self.headrace("audit", "--dataset", DATASET).splitlines()[-1]
        return False

    @cached_property
    def airflow(self) -> AirflowRest:
        """Airflow's REST API, as its user."""
        passwords = json.loads(self.compose("exec", "-T", "runner", "cat", "/state/airflow/passwords.json"))
        port = self.environ.get("STACK_AIRFLOW_PORT", "8080")
        return AirflowRest(f"http://127.0.0.1:{port}", USER, str(passwords[USER]))

    @property
    def datasets(self) -> Path:
        """The folder of datasets that is mounted."""
        return self.clone / self.environ["STACK_DATASETS"]

    def add_column(self) -> None:
        """Add a column to silver of the dataset in the mounted folder: a change that is only an addition."""
        path = self.datasets / DATASET / "silver.py"
        text, before = path.read_text("utf-8"), '*accepted.columns, "stage",'
        assert before in text, f"{path} has no {before}"
        added = f'{before} F.length("dest").alias("length_{text.count("F.length")}"),'
        path.write_text(text.replace(before, added), "utf-8")

    def print_costs(self) -> None:
        """Print the size of each image and the memory of each container."""
        for title, found in (("image", self.sizes()), ("memory", self.memory())):
            for name, size in found.items():
                print(f"{title:8} {name:36} {size}")

    def memory(self) -> dict[str, str]:
        """Return the memory that each container uses."""
        ids = self.compose("ps", "--quiet").split()
        lines = self.run("docker", "stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}", *ids).splitlines()
        return {line.split()[0]: line.partition(" ")[2].partition(" /")[0] for line in lines}

    def sizes(self) -> dict[str, str]:
        """Return the size of each image of ours; layers are shared."""
        lines = self.run("docker", "image", "ls", "headrace*", "--format", "{{.Repository}} {{.Size}}").splitlines()
        return dict(line.split() for line in lines)


def line_about(words: str, output: str) -> str:
    """Return the last line of an output that contains the words, "" when none does."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and words in line]
    return lines[-1] if lines else ""


def await_that(holds: Callable[[], bool], what: str, within: float = 300.0) -> None:
    """Wait until `holds`. Raises StateNotReached."""
    await_value(lambda: holds() or None, what, within)


def await_value(ask: Callable[[], Answer | None], what: str, within: float = 300.0) -> Answer:
    """Ask until there is an answer, and return it. Raises StateNotReached."""
    began = time.monotonic()
    while (answer := ask()) is None:
        if time.monotonic() > began + within:
            raise StateNotReached(f"{within:.0f} s passed before {what}")
        time.sleep(0.5)
    return answer
