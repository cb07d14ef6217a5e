"""How long the console's pages take at a long history: make bench-console.

Enters 100,000 runs (bronze, silver, rejected and one gold commit each, three reasons of rejection) into a ledger by the
product's own writer, writes published tables and plans, starts the console as a process, and requests each page in
turn. Prints the median, the 95th percentile and the greatest time of each page, the server's CPU time for it, and
the slowest page against the goal; writes them as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
from plan_samples import plan_at
from served_console import served_console
from small_warehouse import SmallWarehouse, at, bronze_row, rejected_row, silver_row

from include.ground.delta_log import Commit
from include.ground.settings import Settings
from include.observe.ledger_rows import insert_commits
from include.observe.ledger_writer import LedgerWriter, insert_publications, open_writer
from include.plans.plan import Stage
from include.read.publication import Publication, TableVersion, publish

GOAL_MS = 200.0
RELEASE = "ab12cd34ef56"
ROWS, STEP, PLANS, WARM = 20, 2_000, 300, 3
PageFigures = dict[str, Any]
REASONS = {"type": 1, "range": 1, "duplicate": 1}


def main() -> None:
    """Print the table and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--json", type=Path, default=Path("bench-console.json"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-console-") as folder:
        settings = Settings(state=Path(folder) / "state", console="off")
        began = time.monotonic()
        make_history(settings, chosen.runs)
        make_tables_and_plans(settings)
        print(f"{chosen.runs:,} runs in the ledger, {PLANS} plans: {time.monotonic() - began:.0f} s", flush=True)
        found = measured(settings, chosen.runs, chosen.requests)
    chosen.json.write_text(json.dumps({"goal, ms": GOAL_MS, "runs": chosen.runs, "pages": found}, indent=1))
    print(table(found))


def make_history(settings: Settings, count: int) -> None:
    """Enter the runs, one for each batch and second up to now."""
    writer, start = open_writer(settings), int(time.time() * 1000) - count * 1000
    for first in range(0, count, STEP):
        batches = range(first, min(first + STEP, count))
        for path, commits in commits_of(batches, start).items():
            with writer.transaction() as connection:
                insert_commits(connection, path, commits)
        publish_upto(settings, writer, batches[-1])


def commits_of(batches: range, start: int) -> dict[str, list[Commit]]:
    """The commits of these batches by table."""
    found: dict[str, list[Commit]] = {}
    for n in batches:
        for path, facts in facts_of(n, start + n * 1000):
            owner = facts["app_id"]
            common = {"dataset": "flights", "epoch": 1, "batches": [n, n], "code": RELEASE, "release": RELEASE}
            commit = Commit(n, start + n * 1000 + 700, common | facts, owner, n, (), 0)
            found.setdefault(path, []).append(commit)
    return found


def facts_of(n: int, at_ms: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The metadata that a driver commits with batch `n`, by table."""
    offsets = {"0": [n * ROWS, (n + 1) * ROWS]}
    bronze = {
        "topic": "flights",
        "topic_id": "t",
        "query_id": "q",
        "offsets": offsets,
        "rows_by_partition": {"0": ROWS},
    }
    times = {"timestamps": [at_ms - 400, at_ms], "rows": ROWS, "reference": {}}
    yield "flights/bronze", {"app_id": "flights/bronze/g1"} | bronze | times
    event_time = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
    silver = {"rows_in": ROWS, "rows": ROWS - 3, "event_time_max": {"0": event_time}}
    yield f"flights/{RELEASE}/silver", {"app_id": f"flights/{RELEASE}/silver"} | silver
    rejected = {"rows": 3, "dispositions": {"invalid": 2, "duplicate": 1}, "reasons": REASONS, "warnings": {}}
    yield f"flights/{RELEASE}/rejected", {"app_id": f"flights/{RELEASE}/rejected"} | rejected
    gold = {"rows": 2, "grains": 2, "total": n + 1}
    yield f"flights/{RELEASE}/gold/route_days", {"app_id": f"flights/{RELEASE}/gold/route_days"} | gold


def publish_upto(settings: Settings, writer: LedgerWriter, batch: int) -> None:
    """Move the publication, and enter it."""
    paths = {"bronze.flights": "bronze"} | {
        f"{layer}.flights": f"{RELEASE}/{layer}" for layer in ("silver", "rejected")
    }
    paths["gold.route_days"] = f"{RELEASE}/gold/route_days"
    tables = {name: TableVersion(f"flights/{path}", batch) for name, path in paths.items()}
    publication = Publication("flights", RELEASE, batch, datetime.now(UTC), {0: (batch + 1) * ROWS}, tables)
    publish(settings, publication)
    with writer.transaction() as connection:
        insert_publications(connection, publication)


def make_tables_and_plans(settings: Settings) -> None:
    """Publish tables of another dataset, with 60,000 rows and 20,000 rejected records in 20 files; add plans."""
    warehouse = SmallWarehouse(settings)
    for batch in range(20):
        rows = range(batch * 4000, (batch + 1) * 4000)
        warehouse.write("bronze", [bronze_row(n, b'{"shop": "north"}' * 8, batch=batch) for n in rows])
        valid = [n for n in rows if n % 4]
        warehouse.write("silver", [silver_row(n, f"e{n}", batch=batch, sold_at=at(1 + n % 28)) for n in valid])
        wrong = [rejected_row(n, "invalid", "type", batch=batch) for n in rows if not n % 4]
        warehouse.write("rejected", wrong)
    facts = {"mean_amount": Decimal("1"), "kinds": 1, "_first_batch": 0, "_last_batch": 1, "_revision": 1}
    days = [
        {"day": at(1 + n % 28).date(), "shop": f"shop {n}", "sales": n, "turnover": Decimal(n), "_month": "2026-03"}
        | facts
        for n in range(20_000)
    ]
    warehouse.write("gold", days)
    warehouse.move(batch=19, offsets={0: 80_000})
    for _ in range(PLANS):
        plan_at(settings, Stage.BUILT, Stage.COMPARED, Stage.APPROVED, Stage.APPLIED)


def measured(settings: Settings, runs: int, requests: int) -> dict[str, PageFigures]:
    """The figures of each page, of a console that runs as a process."""
    environment = os.environ | {"HEADRACE_STATE": str(settings.state)}
    with served_console(environment) as (address, server):
        await_history(address)
        pages, process = pages_of(runs), psutil.Process(server.pid)
        for path in pages * WARM:
            request(address, path)
        return {path: page_figures(address, path, requests, process) for path in pages}


def page_figures(address: str, path: str, requests: int, process: psutil.Process) -> PageFigures:
    """Request a page; the observer's CPU seconds meanwhile count as the page's."""
    before = cpu_seconds(process)
    times = [request(address, path) for _ in range(requests)]
    return {"ms": times, "cpu_ms": 1000 * (cpu_seconds(process) - before) / requests}


def cpu_seconds(process: psutil.Process) -> float:
    """CPU seconds of a process."""
    used = process.cpu_times()
    return float(used.user + used.system)


def pages_of(runs: int) -> list[str]:
    """The addresses that are requested."""
    middle = f"/datasets/flights/runs?release={RELEASE}&before={runs // 2}"
    return [
        *("/", "/?range=day", "/?range=month", "/datasets/flights", "/datasets/flights?range=month"),
        *("/datasets/flights/runs", middle, f"/datasets/flights/runs?release={RELEASE}&after=0"),
        *("/datasets/flights/quality", "/datasets/flights/quality?range=month", "/datasets/flights/contract"),
        *("/plans", f"/plans/release-flights-{PLANS}", "/tables", "/tables/silver.sales", "/tables/gold.shop_days"),
        *("/lineage", "/storage", "/sql?q=select+shop,count(*)+from+silver.sales+group+by+1"),
    ]


def await_history(address: str) -> None:
    """Wait until the figures of the month begin with the first run."""
    end = time.monotonic() + 120
    while "Records published" not in read(address, "/datasets/flights?range=month"):
        if time.monotonic() > end:
            raise TimeoutError("the console shows no figures")
        time.sleep(0.2)
    # The history is read for a second in each observation; then it stays current.
    time.sleep(15)


def read(address: str, path: str) -> str:
    """A page's text."""
    with urllib.request.urlopen(address + path, timeout=30) as answer:
        return str(answer.read().decode())


def request(address: str, path: str) -> float:
    """The milliseconds of one request."""
    began = time.perf_counter()
    read(address, path)
    return 1000 * (time.perf_counter() - began)


def table(found: dict[str, PageFigures]) -> str:
    """The figures as text, against the goal; on a busy machine only the CPU milliseconds are meaningful."""
    lines = [f"{'page':62}{'median':>9}{'p95':>9}{'max':>9}{'CPU':>9}  ms"]
    for path, each in found.items():
        times = each["ms"]
        figures = (statistics.median(times), percentile(times), max(times), each["cpu_ms"])
        lines.append(f"{path[:60]:62}" + "".join(f"{figure:9.1f}" for figure in figures))
    pages = {path: each for path, each in found.items() if not path.startswith("/sql?")}
    slowest, most = max(percentile(each["ms"]) for each in pages.values()), max(e["cpu_ms"] for e in pages.values())
    verdict = "reached" if slowest <= GOAL_MS else "missed"
    lines.append(
        f"p95 of the slowest page, without SQL: {slowest:.1f} ms, goal {GOAL_MS:g}: {verdict}; CPU {most:.1f} ms"
    )
    lines.append(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return "\n".join(lines)


def percentile(times: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(times, n=20, method="inclusive")[-1]


if __name__ == "__main__":
    main()
