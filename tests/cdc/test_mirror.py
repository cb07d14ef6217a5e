"""A real database, connector and streams: mirrors equal tables that change, and each planted error is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake

from cdc.bank import TABLES, Bank, open_bank, settings_of
from include.ground.paths import warehouse
from include.ground.processes import Waiting
from include.read.publication import find_publication, publish, read_publication
from include.state.run_files import bootstrap_servers

pytestmark = [pytest.mark.extended, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def bank() -> Iterator[Bank]:
    with TemporaryDirectory(prefix="headrace-cdc-") as folder, open_bank(settings_of(Path(folder) / "state")) as found:
        yield found


def published_offsets(bank: Bank) -> list[int]:
    """Return how many records of each dataset are published."""
    found = [find_publication(bank.settings, name) for name in TABLES]
    return [0 if each is None else sum(each.offsets.values()) for each in found]


def headrace(*words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "include.cli.main", *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def audited(bank: Bank, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code of an audit against the database, and its datasets by name."""
    code, output, errors = headrace("audit", "--source", bank.server.url, "--json", *words)
    assert output, errors
    return code, {each["dataset"]: each for each in json.loads(output)["datasets"]}


@contextmanager
def planted(bank: Bank, dataset: str, table: str) -> Iterator[DeltaTable]:
    """Publish what is done to a gold table by hand, and afterwards what was published before."""
    before = read_publication(bank.settings, dataset)
    delta = DeltaTable(str(warehouse(bank.settings) / before.tables[table].path), version=before.tables[table].version)
    yield delta
    changed = replace(before.tables[table], version=DeltaTable(delta.table_uri).version())
    publish(bank.settings, replace(before, tables={**before.tables, table: changed}))


def test_mirrors_equal_their_tables_while_these_change(bank: Bank) -> None:
    """Also with records that are no changes, of which some are no JSON."""
    bank.begin_load(2_000).wait()
    Waiting("the first publications", lambda: published_offsets(bank)).holds(lambda: all(published_offsets(bank)))
    producer = Producer({"bootstrap.servers": bootstrap_servers(bank.settings)})
    for value in (b"null", b"5", b"[1]", b"{", b"\xff", b'{"payload": 3}'):
        producer.produce("bank_tellers", value, partition=0)
    assert producer.flush(30) == 0
    load = bank.begin_load(400_000)
    try:
        code, found = audited(bank)
        assert load.poll() is None, "the tables changed during all of the audit"
    finally:
        load.terminate()
        load.wait()
    mirrors = {each["table"]: each for dataset in found.values() for each in dataset["mirrors"]}
    assert (code, [each["findings"] for each in found.values()]) == (0, [[], [], []])
    assert {*mirrors} == {
        "gold.accounts",
        "gold.account_versions",
        "gold.history",
        "gold.tellers",
        "gold.teller_versions",
    }
    assert len({each["position"] for each in mirrors.values()}) == 1
    assert mirrors["gold.tellers"]["rows"] == 10
    assert mirrors["gold.tellers"]["since"] > 0
    assert mirrors["gold.tellers"]["left_out"] == ["filler (not in gold.tellers)"]


def test_rows_that_were_altered_removed_and_doubled_in_the_mirror_are_named(bank: Bank) -> None:
    """Each row is in another range of keys, and no other row is named."""
    bank.execute("insert into pgbench_accounts values (-9, 1, 90, 'last')")
    assert audited(bank, "--dataset", "bank_accounts")[0] == 0
    first, other = (
        bank.execute(f"select min(aid) from pgbench_accounts where aid > {n}")[0][0] for n in (30000, 90000)
    )
    with planted(bank, "bank_accounts", "gold.accounts") as delta:
        row = delta.to_pyarrow_dataset().to_table().filter(_is("aid", first)).slice(0, 1)
        delta.update({"abalance": "abalance + 7"}, predicate=f"aid = {other}")
        delta.delete("aid = -9")
        write_deltalake(delta.table_uri, row, mode="append")
    code, found = audited(bank, "--dataset", "bank_accounts")
    sentences = {each["detail"] for each in found["bank_accounts"]["findings"] if each["detail"].startswith("aid")}
    balance = bank.execute(f"select abalance from pgbench_accounts where aid = {other}")[0][0]
    assert code == 1
    assert sentences == {
        f"aid {other} abalance is '{balance}' in the source, '{balance + 7}' here",
        "aid -9 is in the source, not here",
        f"aid {first} is 2 times here, once in the source",
    }


def _is(column: str, value: int) -> Any:
    import pyarrow.compute as pc

    return pc.field(column) == value


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://root:secret@localhost/bank", "no URL of a PostgreSQL database"),
        ("postgresql://postgres:secret@127.0.0.1:1/bank", "did not answer"),
        ("postgresql://postgres:p@secret/w:rd@127.0.0.1:1/bank", "cannot be read"),
    ],
)
def test_source_that_cannot_be_read_is_refused_without_its_password(bank: Bank, url: str, said: str) -> None:
    code, _, errors = headrace("audit", "--source", url)
    assert (code, said in errors, "secret" in errors) == (2, True, False)


def test_slot_of_no_connector_is_named(bank: Bank) -> None:
    code, _, errors = headrace("audit", "--source", bank.server.url, "--slot", "other")
    assert (code, "has no replication slot 'other'" in errors) == (2, True)
