"""Two real drivers write one table with Spark: the old one, suspended between plan and commit, never commits after a
claim."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable
from recovery_site import wait_until

from include.ground.app_ids import owner_epoch
from include.ground.delta_log import commits
from include.ground.settings import CLONE

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]
WRITER = Path(__file__).with_name("spark_writer.py")


@dataclass
class Writer:
    """A driver of its own, and its JVM and Python workers."""

    process: subprocess.Popen[str]
    log: Path

    def answer(self) -> dict[str, Any]:
        """Return the answer to the last command."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise AssertionError(self.log.read_text("utf-8")[-3000:])

    def tell(self, **command: Any) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def do(self, **command: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        self.tell(**command)
        return self.answer()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all of its processes."""
        found = psutil.Process(self.process.pid)
        for process in (found, *found.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


@dataclass
class TwoDrivers:
    """The old owner and the new one of a table, and the file that holds the old one's tasks back."""

    folder: Path
    writers: list[Writer] = field(default_factory=list)

    @property
    def table(self) -> Path:
        return self.folder / "a table"

    @property
    def flag(self) -> Path:
        return self.folder / "wait"

    def start(self, name: str) -> Writer:
        log = self.folder / f"{name}.log"
        path = os.pathsep.join([str(CLONE), *sys.path])
        command = [sys.executable, str(WRITER), str(self.folder / name), str(self.table)]
        with log.open("w") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        writer = Writer(process, log)
        self.writers.append(writer)
        assert writer.answer() == {"ready": True}
        return writer

    def begin_write(self, writer: Writer, **command: Any) -> None:
        """Have a driver begin a write, whose tasks wait, and return when they do."""
        self.flag.touch()
        writer.tell(**command, flag=str(self.flag))
        at = self.flag.with_name(self.flag.name + ".at")
        wait_until(at.exists, "a task of the write waits", within=120)
        at.unlink()

    def end(self) -> None:
        for writer in self.writers:
            writer.send(signal.SIGKILL)
            writer.process.wait(30)

    def batches(self) -> Counter[int]:
        return Counter(DeltaTable(str(self.table)).to_pyarrow_table()["_batch_id"].to_pylist())

    def assert_each_commit_of_rows_is_fenced(self) -> None:
        """The whole log: every commit with files has the owner's transaction, and no epoch comes after a later one."""
        log = list(commits(self.table))
        assert [each.version for each in log if (each.added or each.removed) and each.owner is None] == []
        epochs = [owner_epoch(each.owner) for each in log if each.owner is not None]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) == 2


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[TwoDrivers]:
    found = TwoDrivers(tmp_path)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.parametrize("verb", ["append", "replace"])
def test_suspended_driver_commits_nothing_after_a_claim(drivers: TwoDrivers, verb: str) -> None:
    old, new = drivers.start("old"), drivers.start("new")
    assert "error" not in old.do(do="claim", epoch=5)
    assert old.do(do="append", batch=0) == {"committed": 0}
    drivers.begin_write(old, do=verb, batch=1)
    old.send(signal.SIGSTOP)

    assert new.do(do="claim", epoch=6) == {"committed": 0}
    assert new.do(do=verb, batch=1) == {"committed": 1}
    assert new.do(do="append", batch=2) == {"committed": 2}
    drivers.flag.unlink()
    old.send(signal.SIGCONT)

    assert old.answer()["error"] == "OwnershipLost"
    for again in (1, 3):
        assert old.do(do=verb, batch=again)["error"] == "OwnershipLost"
    assert old.do(do="claim", epoch=6)["error"] == "OwnershipLost"
    assert new.do(do="append", batch=3) == {"committed": 3}
    expected = {0: 10, 1: 10, 2: 10, 3: 10} if verb == "append" else {1: 10, 2: 10, 3: 10}
    assert drivers.batches() == expected
    drivers.assert_each_commit_of_rows_is_fenced()


def test_commit_that_was_faster_than_the_claim_counts_and_is_not_repeated(drivers: TwoDrivers) -> None:
    old, new = drivers.start("old"), drivers.start("new")
    old.do(do="claim", epoch=5)
    assert old.do(do="append", batch=0) == {"committed": 0}
    assert new.do(do="claim", epoch=6) == {"committed": 0}
    assert new.do(do="append", batch=0) == {"committed": 0}
    assert drivers.batches() == {0: 10}


def test_write_without_the_owners_transaction_would_commit(drivers: TwoDrivers) -> None:
    """The control: what the owner's transaction prevents does happen without it."""
    old, new = drivers.start("old"), drivers.start("new")
    old.do(do="claim", epoch=5)
    drivers.begin_write(old, do="unfenced", batch=1)
    new.do(do="claim", epoch=6)
    new.do(do="append", batch=1)
    drivers.flag.unlink()
    assert "error" not in old.answer()
    assert drivers.batches() == {1: 20}
