"""`docker compose up -d` alone, in a fresh clone: it becomes healthy, and Airflow shows flights that stream."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator

import pytest
from stack_tools.demo import DAYS, REPLAY, STREAM, backfill, finished
from stack_tools.faults import CORE
from stack_tools.site import StackSite, await_that

from include.ground.ports import free_ports
from include.ground.settings import CLONE

NAMES = ("AIRFLOW", "CONSOLE", "KAFKA")
# Instead of the images of a registry: those of Debian's packages.
FILES = "docker-compose.yml:infra/stand-ins/compose.yaml"
PASSWORDS = {"kafka": "kafka", "postgres": "postgres", "runner": "warehouse"}
# At a hundred a second the first days are complete.
SENT = 15_000
pytestmark = [pytest.mark.extended, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackSite]:
    """A clone of what is committed, with ports of its own; its containers and volumes are removed."""
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    subprocess.run(["git", "clone", "--quiet", CLONE, folder], check=True)
    ports = {f"STACK_{name}_PORT": str(port) for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True)}
    project = f"headrace-test-{secrets.token_hex(4)}"
    found = StackSite({"COMPOSE_FILE": FILES, "COMPOSE_PROJECT_NAME": project, **ports}, folder)
    yield found
    found.compose("down", "--volumes")


def passwords(site: StackSite) -> dict[str, str]:
    """Return the passwords, each as a service that reads it sees it."""
    found = {name: f"/run/secrets/{name}/password" for name in PASSWORDS.values()}
    return {name: site.compose("exec", "-T", of, "cat", found[name]).strip() for of, name in PASSWORDS.items()}


def test_fresh_clone_streams_recomputes_and_balances(site: StackSite) -> None:
    site.compose("up", "-d", within=2400)
    await_that(lambda: site.are_healthy(*CORE, "sample"), "every service is healthy", 600)
    written = passwords(site)
    assert len(set(written.values())) == len(written)
    assert min(map(len, written.values())) > 20
    for container in site.containers("--quiet"):
        facts = site.run("docker", "inspect", container)
        assert not [name for name, password in written.items() if password in facts]
    assert "cat /state/airflow/passwords.json" in site.compose("logs", "secrets")

    (run,) = site.airflow.runs(STREAM)
    site.airflow.await_task(STREAM, run["dag_run_id"], "keep", "deferred")
    await_that(lambda: site.published_records() >= SENT, f"{SENT} records are published", 900)
    assert backfill(site) == ", ".join(f"{day} verified" for day in DAYS)
    assert finished(site, REPLAY, {"by": "batches", "first_batch": 0, "last_batch": 0}).endswith("verified")
    assert site.is_balanced()

    site.compose("up", "-d")
    assert passwords(site) == written
