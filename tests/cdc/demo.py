"""A bank on PostgreSQL and its mirror in gold: 200,000 changes of every kind, kills, then `SELECT *` is compared.

    python -m cdc.demo [--transactions 66000] [--keep]   (`make demo-cdc`)

Reads / Writes: `.headrace-cdc`, which it makes anew; a PostgreSQL server, a broker and a connector of its own.
Guarantee: it exits 0 only when the audit found every mirror equal to its table, and so did a comparison of all rows by
other code. After a crash: the same command begins anew.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import psycopg

from cdc.bank import Bank, open_bank, settings_of
from include.audit.source import SourceDatabase
from include.ground.errors import HeadraceError, Terminal
from include.ground.processes import Waiting
from include.ground.settings import CLONE
from include.read.published_tables import pinned
from include.state.process_states import BROKER
from include.state.run_files import read_run_file

STATE = CLONE / ".headrace-cdc"
TRANSACTIONS = 66_000
PHASES = 3
MIRRORS = {
    "accounts": ("pgbench_accounts", ("aid", "bid", "abalance", "filler", "note")),
    "tellers": ("pgbench_tellers", ("tid", "bid", "tbalance")),
    "history": ("pgbench_history", ("hid", "tid", "bid", "aid", "delta", "mtime")),
}
"""By table of gold the table of the database and the columns that both have."""
CHANGES = """
select op, count(*) as changes from (
  select op from silver.bank_accounts union all select op from silver.bank_tellers
  union all select op from silver.bank_history
) group by op order by op
"""


@dataclass
class Story:
    """What is told while the bank is at work."""

    bank: Bank
    began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """Print a line with the seconds since the beginning."""
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def changes(self, transactions: int) -> None:
        """Let pgbench's clients change the tables in phases, and disturb each of them."""
        for number, (what, disturb) in enumerate(self._disturbances()):
            load = self.bank.begin_load(transactions // PHASES, seed=number + 1)
            time.sleep(2)
            self.say(what)
            disturb()
            if load.wait():
                raise Terminal("pgbench failed; the mirror was not compared", code="load-failed")
        self.say("PostgreSQL: killed, and started again; connector: started again")
        self.bank.server.stop()
        self.bank.server.start()
        # Debezium 3.6 stands still after the loss of its database.
        self._restart_connector()

    def _disturbances(self) -> Iterator[tuple[str, Callable[[], None]]]:
        execute = self.bank.execute

        def snapshot_made() -> None:
            # A snapshot that is interrupted begins again, and Debezium sends no deletion of what was deleted meanwhile.
            self._await_capture()
            self._restart_connector()

        def new_column() -> None:
            execute("alter table pgbench_accounts add column note text")
            execute("update pgbench_accounts set note = 'of age ' || aid % 90 where aid % 50 = 0")
            self._kill("driver:shared")
            self._restart_connector()

        def truncated() -> None:
            execute("truncate pgbench_history")
            execute(
                "begin; truncate pgbench_tellers; "
                "insert into pgbench_tellers (tid, bid, tbalance) select n, 1, 0 from generate_series(1, 12) as n; "
                "commit"
            )
            self._kill(BROKER)

        yield (
            "pgbench is at work during the snapshot; connector: killed after it",
            snapshot_made,
        )
        yield "history and tellers truncated; broker: killed", truncated
        yield "a column added; driver and connector: killed", new_column

    def _await_capture(self) -> None:
        """Wait until the connector has read the log up to now, so its snapshot is behind it."""
        with closing(SourceDatabase(self.bank.server.url)) as database:
            mark = database.mark()
            Waiting("the connector", database.confirmed).holds(lambda: database.confirmed() >= mark, 0.5)

    def _restart_connector(self) -> None:
        self.bank.connector.kill()
        self.bank.connector.start()

    def _kill(self, name: str) -> None:
        run = read_run_file(self.bank.settings, name)
        assert run is not None
        os.kill(run.pid, signal.SIGKILL)


def headrace(*words: str) -> None:
    """Run a command of Headrace, with its output here. Raises Terminal when it fails."""
    if subprocess.run([sys.executable, "-m", "include.cli.main", *words], check=False).returncode:
        raise Terminal(f"headrace {words[0]} failed", code="step-failed")


def differing(bank: Bank, table: str) -> int:
    """Return in how many rows a table of gold and `SELECT *` differ, by Python's sets of rows."""
    source, columns = MIRRORS[table]
    with psycopg.connect(bank.server.url) as connection:
        connection.execute("set timezone = 'UTC'")
        theirs = {*connection.execute(f"select {', '.join(columns)} from {source}".encode()).fetchall()}
    rows = pinned(bank.settings).read(f"gold.{table}", columns=columns).collect()
    if "mtime" in columns:
        rows = rows.with_columns(mtime=rows["mtime"].dt.replace_time_zone(None))
    return len(theirs.symmetric_difference(rows.iter_rows()))


def run(transactions: int, keep: bool) -> int:
    """Tell the story; return the exit code."""
    settings = settings_of(STATE)
    began = time.monotonic()
    with open_bank(settings, lambda line: print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)) as bank:
        story = Story(bank, began)
        story.changes(transactions)
        story.say("audit: waiting until all is published")
        headrace("audit", "--source", bank.server.url)
        found = {table: differing(bank, table) for table in MIRRORS}
        for table, count in found.items():
            rows = f"{count:,} rows differ from" if count else "equal to"
            story.say(f"gold.{table}: {rows} SELECT * from {MIRRORS[table][0]}")
        headrace("query", CHANGES)
        story.say(f"{sum(found.values())} rows differ")
        if keep:
            story.say(f"it runs until Ctrl-C: HEADRACE_STATE={settings.state}, the database is {bank.server.url}")
            signal.pause()
    return 1 if any(found.values()) else 0


def main() -> int:
    """Entry point of `make demo-cdc`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transactions", type=int, default=TRANSACTIONS, help="of pgbench's clients")
    parser.add_argument("--keep", action="store_true", help="let all run until Ctrl-C, to try the mirror")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(given.transactions, given.keep)
    except KeyboardInterrupt:
        return 130
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
