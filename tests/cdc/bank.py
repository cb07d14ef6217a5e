"""A bank on PostgreSQL, which pgbench's clients change, and what mirrors it: Connect with Debezium, a broker, streams.

Everything runs on this machine on free ports, in a state folder that `open_bank` makes anew; all of it ends with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from include.ground.kafka import ensure_topic
from include.ground.settings import Settings
from include.run.start_stop import down, up
from include.state.run_files import bootstrap_servers
from infra.kafka.connect import Capture, ConnectWorker, fetch_connect
from infra.postgres.server import LOGICAL, USER, PostgresServer, binary, postgres_server

HERE = Path(__file__).parent
TABLES = {
    "bank_accounts": "pgbench_accounts",
    "bank_tellers": "pgbench_tellers",
    "bank_history": "pgbench_history",
}
"""By dataset, which is also the topic, the table whose changes it has."""
PREFIX = "bank"
CLIENTS = 4
PREPARED = """
alter table pgbench_history add column hid bigserial primary key;
alter table pgbench_tellers replica identity full;
create sequence new_aid start 200001
"""
"""pgbench's history has no key, and its tellers have their whole row in each change."""
# A crash of the server's process loses nothing without it.
OPTIONS = (*LOGICAL, "-c", "fsync=off", "-c", "max_wal_size=4GB")


@dataclass
class Bank:
    """The database's server, the connector, and the settings of the streams."""

    server: PostgresServer
    connector: ConnectWorker
    settings: Settings

    def execute(self, statement: str) -> list[Any]:
        """Execute a statement of its own transaction, and return its rows."""
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            done = connection.execute(statement)
            return done.fetchall() if done.description else []

    def begin_load(self, transactions: int, seed: int = 1) -> subprocess.Popen[bytes]:
        """Start pgbench's clients, who make so many transactions in all."""
        each = str(max(1, transactions // CLIENTS))
        scripts = ("-b", "tpcb-like@85", "-f", f"{HERE / 'load' / 'customers.sql'}@15")
        command = [binary("pgbench"), "-n", "-c", str(CLIENTS), "-t", each, f"--random-seed={seed}", *scripts]
        return subprocess.Popen([*command, self.server.url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def changed_rows(capture_of: PostgresServer) -> Capture:
    """Return what the connector captures."""
    return Capture(
        capture_of.address,
        capture_of.port,
        USER,
        USER,
        PREFIX,
        [f"public.{table}" for table in TABLES.values()],
        {f"{PREFIX}.public.{table}": dataset for dataset, table in TABLES.items()},
    )


@contextmanager
def open_bank(settings: Settings, report: Any = print) -> Iterator[Bank]:
    """Yield a bank of 100,000 accounts whose streams work and whose connector has been started."""
    binary("postgres")
    fetch_connect(settings)
    with ExitStack() as opened:
        shutil.rmtree(settings.state, ignore_errors=True)
        server = opened.enter_context(postgres_server(options=OPTIONS))
        made = [binary("pgbench"), "--initialize", "--quiet", server.url]
        subprocess.run(made, check=True, capture_output=True)
        connector = ConnectWorker(settings.state / "connect", settings, "", changed_rows(server))
        bank = Bank(server, connector, settings)
        for statement in PREPARED.split(";"):
            bank.execute(statement)

        def begin_capture() -> None:
            connector.bootstrap = bootstrap_servers(settings)
            for topic in TABLES:
                ensure_topic(connector.bootstrap, topic, 2)
            connector.start()

        opened.callback(down, settings, report)
        opened.callback(connector.kill)
        up(settings, list(TABLES), report, begin_capture)
        connector.await_running()
        yield bank


def settings_of(state: Path) -> Settings:
    """Return settings for a bank in this state folder."""
    from include.ground.settings import load_settings

    os.environ["HEADRACE_STATE"], os.environ["HEADRACE_DATASETS"] = str(state), str(HERE / "datasets")
    # One process for tables of one database starts sooner than three, and takes a third of the memory.
    os.environ["HEADRACE_SHARED_DRIVER"] = "auto"
    # A test before may have read other ones.
    load_settings.cache_clear()
    return load_settings()
