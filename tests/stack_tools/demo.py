"""A year of flights through the compose stack: stream, backfill, replay and release by Airflow's REST API, audits.

    python -m stack_tools.demo [--to 2013-02-01]   (`make stack-demo`)

With STACK_WAREHOUSE=s3://tables/headrace it also starts the object store, and compares what is published there.

Reads / Writes: the stack, which it starts; .stack/datasets, a copy of the datasets that the release changes.
Guarantee: it exits 0 only when every run of Airflow succeeded and every audit balanced.
After a crash: the same command continues: nothing is sent twice.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

from include.ground.errors import HeadraceError, Terminal
from include.ground.settings import CLONE
from stack_tools.site import AUDITED, DATASET, StackSite, await_that, await_value, line_about

PROJECT, COPY = "headrace-demo", ".stack/datasets"
STREAM, BACKFILL, REPLAY, RELEASE = (f"{verb}__{DATASET}" for verb in ("stream", "backfill", "replay", "release"))
DAYS = ("2013-01-02", "2013-01-03")
RUN_WITHIN = 1500.0


# Of the flights, in a container.
OPEN_STORED = """
import json
from deltalake import DeltaTable
from include.ground.object_store import find_store
from include.ground.paths import publication_path
from include.ground.settings import load_settings
from include.read.stored_publication import read_stored
settings = load_settings()
store = find_store(settings)
found = read_stored(store, "flights").publication
same = found == json.loads(publication_path(settings, "flights").read_bytes())
tables = [(f"{store.url}/{table['path']}", table["version"]) for table in found["tables"].values()]
rows = sum(DeltaTable(path, version, dict(store.delta_options)).count() for path, version in tables)
print("same" if same else "other", f"publication, batch {found['batch']}: {len(tables)} tables, {rows} rows")
"""


class StepFailed(Terminal):
    """A step of the demo did not end as it should."""


def main() -> int:
    """Run the story; print how long each step took, then sizes and memory."""
    parser = argparse.ArgumentParser(description="A year of flights through the compose stack.")
    parser.add_argument("--to", default="", metavar="TIME", help="end of the event times [default: the whole year]")
    until = parser.parse_args().to
    copy_datasets()
    stored = "STACK_WAREHOUSE" in os.environ
    profiles = "observability,objectstore" if stored else "observability"
    chosen = {"STACK_DATASETS": COPY, "COMPOSE_PROFILES": profiles}
    # Its own volumes and datasets whatever is set: it sends the flights itself, and changes a folder.
    chosen |= {"COMPOSE_PROJECT_NAME": PROJECT, "STACK_SAMPLE": "0"}
    site = StackSite({k: v for k, v in os.environ.items() if k.startswith("STACK_")} | chosen)
    steps: list[tuple[str, Callable[[], str]]] = [
        ("the stack starts", site.up),
        (
            "flights from Kafka to gold",
            lambda: line_about("balanced", site.headrace("demo", *(("--to", until) if until else ()))),
        ),
        ("Prometheus", lambda: scrape(site)),
        ("Airflow keeps the stream", lambda: keep_stream(site)),
        ("backfill of two days", lambda: backfill(site)),
        ("replay of a batch", lambda: finished(site, REPLAY, {"by": "batches", "first_batch": 0, "last_batch": 0})),
        ("release of a changed folder", lambda: release(site)),
        ("status from another container", lambda: f"stream {site.stream_state('console')}"),
        ("the ledger on PostgreSQL, rebuilt", lambda: line_about("", site.headrace("ledger", "rebuild"))),
        ("audit", lambda: line_about(AUDITED, site.headrace("audit"))),
        *([("the object store", lambda: stored_publication(site))] if stored else []),
    ]
    for name, step in steps:
        began = time.monotonic()
        try:
            outcome = step()
        except (HeadraceError, OSError) as error:
            print(f"headrace: {name}: {error}", file=sys.stderr)
            return 1
        print(f"{name:32} {time.monotonic() - began:7.1f} s   {outcome}", flush=True)
    site.print_costs()
    return 0


def copy_datasets() -> None:
    """Copy the datasets once; the release changes the copy, never the clone."""
    if not (CLONE / COPY).exists():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CLONE / "include" / "datasets", CLONE / COPY, ignore=ignored)


def scrape(site: StackSite) -> str:
    """Wait until Prometheus has the stream's published batch; every rule is evaluated. Raises StepFailed."""
    published = "query?query=headrace_published_batch"
    await_that(lambda: bool(answer_of(site, published)["result"]), "the stream is scraped", 120)
    rules = [rule for group in answer_of(site, "rules")["groups"] for rule in group["rules"]]
    if not rules or any(rule["health"] != "ok" for rule in rules):
        raise StepFailed(f"Prometheus cannot evaluate its rules: {rules}")
    return f"scraped, {len(rules)} rules, firing: {[r['name'] for r in rules if r['state'] == 'firing'] or 'none'}"


def answer_of(site: StackSite, path: str) -> dict[str, Any]:
    """Return an answer of Prometheus."""
    port = site.environ.get("STACK_PROMETHEUS_PORT", "9090")
    with urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as answer:
        return dict(json.loads(answer.read())["data"])


def stored_publication(site: StackSite) -> str:
    """Return which batch the store's publication has: the one that readers of the state folder see.

    Each table is opened in the store at its published version. Raises StepFailed, CommandFailed.
    """

    def same() -> str | None:
        return line_about("same", site.compose("exec", "-T", "runner", "python", "-c", OPEN_STORED)) or None

    return await_value(same, "the store has the publication", 60)


def keep_stream(site: StackSite) -> str:
    """Unpause the stream's DAG: its run requests the stream and watches it."""
    page = site.airflow
    page.call("PATCH", f"/dags/{STREAM}", {"is_paused": False})
    end = time.monotonic() + 120
    while not (runs := page.runs(STREAM)):
        if time.monotonic() > end:
            raise StepFailed(f"{STREAM} has no run after 120 s")
        time.sleep(1)
    run = str(runs[-1]["dag_run_id"])
    page.await_task(STREAM, run, "keep", "deferred")
    return f"{run}: deferred, the stream is {site.stream_state()}"


def backfill(site: StackSite) -> str:
    """Recompute two days by Airflow's backfill; both are verified."""
    page = site.airflow
    page.call("PATCH", f"/dags/{BACKFILL}", {"is_paused": False})
    request = {"dag_id": BACKFILL, "from_date": f"{DAYS[0]}T00:00:00Z", "to_date": f"{DAYS[1]}T00:00:00Z"}
    page.call("POST", "/backfills", {**request, "reprocess_behavior": "completed"})
    runs = [run for run in page.runs(BACKFILL) if run["partition_key"] in DAYS]
    results = [ended(site, BACKFILL, str(run["dag_run_id"])) for run in runs[-len(DAYS) :]]
    return ", ".join(f"{day} {result['result']}" for day, result in zip(DAYS, results, strict=True))


def release(site: StackSite) -> str:
    """Ship a folder with another column in silver, an addition, which needs no approval."""
    site.add_column()
    return finished(site, RELEASE, {})


def finished(site: StackSite, dag: str, conf: dict[str, Any]) -> str:
    """Trigger a run, wait for its end, and return what its last task confirmed."""
    found = ended(site, dag, site.airflow.trigger(dag, conf))
    return f"{found['plan']}: {found['result']}" if "plan" in found else str(found)


def ended(site: StackSite, dag: str, run: str) -> dict[str, Any]:
    """Wait for a run's success and return the result of `apply`. Raises StepFailed."""
    if site.airflow.await_run(dag, run, RUN_WITHIN) != "success":
        raise StepFailed(site.airflow.story(dag, run))
    return dict(site.airflow.result(dag, run, "apply"))


if __name__ == "__main__":
    sys.exit(main())
