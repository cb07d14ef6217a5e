"""The commands whose outputs are recorded: the demo with its plans, and the workloads.

All of them go through the command line, so that modules may move. Inputs are bounded: fixed days, counts and seeds.

Not recorded, since the values depend on when records arrived, or on the machine: `status`, `grains` (a window is
corrected if a late record came in a later batch), `storage`, `ledger`, `settings`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from plain import json_text, printed_text, rows_text

ROOT = Path(__file__).resolve().parents[2]
HEADRACE = ROOT / ".venv/bin/headrace"
EVENTS = 5000
"""Events of each workload's feed, `searches` has its own number; of fewer flights `delay_profiles` learns nothing."""
STARTED_WITHIN = 120
RULE = '.withColumn("scheduled_departure", F.from_utc_timestamp("scheduled_departure", "America/New_York"))'
"""The change that is released: the demo's wrong rule, local time instead of UTC."""
ANCHOR = "        accepted.withColumn("
VERDICTS = (0, 1, 2)
"""Exit codes of a command that gives a verdict: right, wrong, not checked. Its output is compared in any case."""
Outputs = dict[str, str]


class CommandFailed(Exception):
    """A command ended otherwise than expected."""


@dataclass
class Platform:
    """A state folder with the datasets of a folder; `outputs`: what was recorded so far, by name."""

    state: Path
    datasets: Path
    outputs: Outputs = field(default_factory=dict)

    def run(
        self, *arguments: str, expect: tuple[int, ...] = (0,), prints: str = "", datasets: Path | None = None
    ) -> str:
        """Run a command of Headrace; return what it printed. Raises CommandFailed, also if it did not print `prints`.

        A verdict and a crash can have the same exit code; only a verdict is printed.
        """
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        environment |= {"HEADRACE_STATE": str(self.state), "HEADRACE_DATASETS": str(datasets or self.datasets)}
        environment |= {"HEADRACE_CONSOLE": "off", "COLUMNS": "120", "NO_COLOR": "1", "LOGNAME": "golden"}
        command = [str(HEADRACE), *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode not in expect or prints not in done.stdout:
            output = (done.stdout + done.stderr)[-3000:]
            raise CommandFailed(f"headrace {' '.join(arguments)} ended with {done.returncode}:\n{output}")
        return done.stdout

    def json(self, name: str, *arguments: str) -> None:
        """Record the output of a command with --json."""
        self.outputs[f"{name}.json"] = json_text(self.run(*arguments, "--json", expect=VERDICTS, prints="\n"))

    def start_broker(self) -> None:
        """Start the broker without the streams, and wait for it: `up --no-streams` waits for the runner only."""
        self.run("up", "--no-streams")
        end = time.monotonic() + STARTED_WITHIN
        while "running" not in (process["state"] for process in self._processes() if process["name"] == "broker"):
            if time.monotonic() > end:
                raise CommandFailed(f"the broker does not run {STARTED_WITHIN} s after headrace up --no-streams")
            time.sleep(1)

    def _processes(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(self.run("status", "--json"))["processes"]
        return found

    def tables(self, name: str, chosen: Callable[[str], bool]) -> None:
        """Record the rows of the published tables whose name is chosen, of all of them by two queries."""
        published = json.loads(self.run("tables", "--json"))
        tables = sorted(table["name"] for table in published if chosen(table["name"]))
        union = " UNION ALL ".join
        selected = (f"SELECT '{table}' AS name, to_json(x)::VARCHAR AS row FROM {table} x" for table in tables)
        rows = self._query(union(selected))
        described = (f"SELECT '{table}' AS name, column_name, column_type FROM (DESCRIBE {table})" for table in tables)
        types = self._query(union(described))
        for table in tables:
            own = [(each["column_name"], each["column_type"]) for each in types if each["name"] == table]
            text = rows_text((each["row"] for each in rows if each["name"] == table), own)
            self.outputs[f"{name}/{table}.txt"] = text

    def _query(self, sql: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(self.run("query", sql, "--format", "json"))
        return found


@contextmanager
def platform(datasets: Path) -> Iterator[Platform]:
    """Yield a new state folder; at the end, stop its processes and remove it."""
    with tempfile.TemporaryDirectory(prefix="headrace golden ") as name:
        made = Platform(Path(name) / "state", datasets)
        try:
            yield made
        finally:
            made.run("down", expect=(0, 1, 2))


def is_gold(table: str) -> bool:
    return table.startswith("gold.")


def demo_outputs() -> Outputs:
    """Return the outputs of two days of flights with injected faults, and of a release, a backfill and a replay."""
    [datasets] = [path.parent.parent for path in ROOT.glob("*/datasets/flights/contract.yaml")]
    with platform(datasets) as made:
        # Before the answers come progress lines: they depend on when records arrived.
        answers = "3  Answers"
        days = ("--from", "2013-01-01", "--to", "2013-01-03")
        printed = made.run("demo", *days, "--weather", expect=(0, 1), prints=answers)
        made.outputs["demo.txt"] = printed_text(printed[printed.index(answers) :])
        made.tables("published", lambda table: is_gold(table) or table.startswith(("rejected.", "silver.")))
        made.json("tables", "tables")
        made.json("audit", "audit", "--full")
        made.json("rejected", "rejected", "summary")
        made.json("quality", "quality", "run")
        made.json("contract", "contract", "check")
        made.json("lineage", "lineage")
        key = {"hour": "2013-01-01T10:00:00Z", "carrier": "AA", "origin": "JFK"}
        keys = [part for name, value in key.items() for part in ("--key", f"{name}={value}")]
        made.json("explain", "explain", "gold.carrier_hours", *keys, "--records", "100")
        _release(made)
        _slices(made)
    return made.outputs


def _release(made: Platform) -> None:
    """Record a release: planned, compared, published and rolled back."""
    changed = made.state.parent / "datasets"
    shutil.copytree(made.datasets, changed, ignore=shutil.ignore_patterns("__pycache__"))
    silver = changed / "flights" / "silver.py"
    text = silver.read_text("utf-8")
    if ANCHOR not in text:
        raise CommandFailed(f"{ANCHOR!r} is not in flights/silver.py; the release's rule cannot be inserted")
    silver.write_text(text.replace(ANCHOR, f"        accepted{RULE}.withColumn("), "utf-8")
    planned = made.run("release", "plan", "--dataset", "flights", "--json", datasets=changed)
    plan = json.loads(planned)["id"]
    made.outputs["release/planned.json"] = json_text(planned)
    # Exit code 1: it is built and compared, and needs an approval.
    made.run("plan", "apply", plan, expect=(1,), datasets=changed)
    made.json("release/compared", "plan", "show", plan, "--details")
    made.run("plan", "apply", plan, "--yes", datasets=changed)
    made.tables("release/published", is_gold)
    made.json("release/audit", "audit", "--full")
    made.run("plan", "rollback", plan)
    made.run("plan", "retire", plan)
    made.tables("release/rolled back", is_gold)


def _slices(made: Platform) -> None:
    """Record a backfill with a changed reference table, which differs, and a replay, which does not."""
    airlines = made.state.parent / "airlines.csv"
    rows = json.loads(made.run("query", "SELECT DISTINCT carrier, airline FROM silver.flights", "--format", "json"))
    lines = [f"{row['carrier']},{row['airline']}{' (renamed)' if row['carrier'] == 'AA' else ''}" for row in rows]
    airlines.write_text("\n".join(["carrier,name", *sorted(lines)]) + "\n", "utf-8")
    made.run("reference", "load", "airlines", str(airlines), "--dataset", "flights")
    span = ("--from", "2013-01-01", "--to", "2013-01-02")
    arguments = ("--dataset", "flights", "--yes", "--json")
    backfill = json.loads(made.run("backfill", "run", *span, "--reference", "today", *arguments))
    made.json("backfill", "plan", "show", backfill["id"], "--details")
    offsets = json.dumps({"0": [100, 1000], "1": [100, 1000]})
    replay = json.loads(made.run("replay", "run", "--offsets", offsets, "--reference", "today", *arguments))
    made.json("replay", "plan", "show", replay["id"], "--details")
    made.json("audit after plans", "audit", "--full")
    made.tables("after plans", lambda table: table == "silver.flights")


def workload_outputs(names: tuple[str, ...]) -> Outputs:
    """Return the outputs of workloads and of the ones that they are derived from."""
    # A file, since a folder that was moved stays where Python left its caches.
    [datasets] = [path.parent.parent for path in ROOT.glob("*/workloads/datasets/posts/pipeline.yaml")]
    with platform(datasets) as made:
        result = made.state.parent / "workloads.json"
        arguments = (*names, "--events", str(EVENTS), "--json", str(result))
        made.run("demo-workloads", *arguments, expect=(0, 1), prints="p95 s")
        made.outputs["workloads.json"] = json_text(result.read_text("utf-8"))
        made.tables("published", is_gold)
        for plan in json.loads(made.run("plan", "list", "--json")):
            made.json(f"plans/{plan['id']}", "plan", "show", plan["id"])
        made.start_broker()
        for dataset in sorted({table["dataset"] for table in json.loads(made.run("tables", "--json"))}):
            made.json(f"audit/{dataset}", "audit", "--full", "--dataset", dataset)
    return made.outputs


PARTS: Mapping[str, Callable[[], Outputs]] = {
    "demo": demo_outputs,
    "ad_events": partial(workload_outputs, ("ad_events",)),
    "posts": partial(workload_outputs, ("posts",)),
    "auction": partial(workload_outputs, ("auction_prices",)),
    "orders": partial(workload_outputs, ("customer_revenue",)),
    "travel": partial(workload_outputs, ("weather_delays",)),
    "searches": partial(workload_outputs, ("searches",)),
}
"""What is run and compared for itself, each with a state folder of its own. A derived workload brings its sources."""
