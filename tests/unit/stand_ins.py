"""A runner in this process, whose broker and drivers are a few lines of Python: real processes, real signals."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include.ground.paths import status_path
from include.ground.ports import free_ports
from include.ground.settings import Settings
from include.observe.processes import observe_stream
from include.run import child_process as driver_process
from include.run import runner
from include.run.child_process import spawn
from include.run.reconcile import Policy
from include.run.runner import Runner
from include.state.process_states import BROKER, CONSOLE, METRICS, OPENLINEAGE, WORKING_STATES, stream_name
from include.state.run_files import RunFile, read_run_file
from include.state.streams import DriverStatus, request_stream, status_file

# Reports `running`, and `stopped` on SIGTERM; the argument selects a fault.
DRIVER = """
import datetime, json, os, signal, sys, time
how, status = sys.argv[1], sys.argv[2]
def report(state, reason=None, **more):
    at = datetime.datetime.now(datetime.UTC).isoformat()
    with open(status + ".part", "w") as file:
        json.dump({"state": state, "reason": reason, "pid": os.getpid(), "at": at} | more, file)
    os.replace(status + ".part", status)
def drain(*_):
    report("stopped"); sys.exit(0)
print("driver starts", flush=True)
if how == "refused":
    report("failed", "the checkpoint is damaged", terminal=True); sys.exit(2)
if how == "fails":
    report("failed", "no space left"); sys.exit(1)
if how == "sleeps":
    report("asleep", topic="flights", rests_at={"0": 5}); sys.exit(0)
if how == "dies":
    sys.exit("no such thing\\n  at line 1")
if how == "leaves a child":
    import subprocess
    subprocess.Popen([sys.executable, "-c", "import time; print('child', flush=True); time.sleep(600)"])
signal.signal(signal.SIGTERM, signal.SIG_IGN if how == "deaf" else drain)
if how.startswith("hangs"):
    begun = datetime.datetime.now(datetime.UTC).isoformat()
    while True:
        report("starting" if how == "hangs at start" else "running", progress_at=begun)
        time.sleep(0.05)
report("running")
while True: time.sleep(0.05)
"""
LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True: server.accept()[0].close()
"""
# Without the packages of the environment, which take longer to find than these scripts to start.
PYTHON = (sys.executable, "-S", "-c")
QUICK = Policy(first_pause=0.05, longest_pause=0.2, drain_within=5.0, healthy_after=60.0)


def report_progress(settings: Settings, name: str) -> None:
    """Write the report of a process that makes progress; it has the pid of this one, which may be hours old."""
    now = datetime.now(UTC)
    status_file(settings, name).write(DriverStatus("running", pid=os.getpid(), at=now, progress_at=now))


@dataclass
class StandIns:
    """`how[dataset]` chooses how its driver misbehaves; `turn` is one turn of the runner.

    `shared[dataset]`: the driver that it shares, which `how` names by its process name.
    """

    settings: Settings
    how: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    shared: dict[str, str] = field(default_factory=dict)
    policy: Policy = QUICK
    runner: Runner = field(init=False)
    port: int = 0

    def __post_init__(self) -> None:
        self.runner = Runner(self.settings, self.policy, self.lines.append)

    def command(self, dataset: str) -> list[str]:
        """What is run instead of a driver."""
        return self.shared_command(dataset, stream_name(dataset))

    def shared_command(self, named: str, process: str = "") -> list[str]:
        """What is run instead of a shared driver, or of any process that reports."""
        status = status_path(self.settings, process or named)
        return [*PYTHON, DRIVER, self.how.get(named, "well"), str(status)]

    def start_broker(self, settings: Settings) -> RunFile:
        """What is started instead of a broker: something that listens."""
        self.port = self.port or free_ports(1)[0]
        argv = [*PYTHON, LISTENER, str(self.port)]
        extra = {"bootstrap": f"127.0.0.1:{self.port}", "port": self.port}
        return spawn(settings, BROKER, argv, Path.cwd(), os.environ, extra)

    def step(self) -> bool:
        """One turn of the runner, now."""
        return self.runner.step(time.monotonic())

    def until(self, holds: Callable[[], bool], what: str = "", within: float = 20.0) -> None:
        """Turn after turn until it holds."""
        end = time.monotonic() + within
        while not holds():
            assert time.monotonic() < end, (what, self.lines)
            self.step()
            time.sleep(0.02)

    def started(self, dataset: str = "flights") -> RunFile:
        """Want a stream, and return its run file when it is at work."""
        request_stream(self.settings, dataset, "a test")
        self.until(lambda: observe_stream(self.settings, dataset).state in WORKING_STATES)
        run = read_run_file(self.settings, stream_name(dataset))
        assert run is not None
        return run

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the runner start the stand-ins."""
        monkeypatch.setattr(driver_process, "driver_command", self.command)
        monkeypatch.setattr(driver_process, "shared_command", self.shared_command)
        monkeypatch.setattr(driver_process, "member_command", lambda settings, dataset, driver: self.command(dataset))
        monkeypatch.setattr(runner, "shared_driver", lambda settings, dataset: self.shared.get(dataset, ""))
        monkeypatch.setattr(runner, "start_broker", self.start_broker)

    def end(self) -> None:
        """End whatever is left."""
        for name in (
            BROKER,
            CONSOLE,
            METRICS,
            OPENLINEAGE,
            *(stream_name(dataset) for dataset in ("flights", "weather")),
            *self.shared.values(),
        ):
            run = read_run_file(self.settings, name)
            if run is not None:
                run.send(signal.SIGKILL)


@contextmanager
def runner_with(settings: Settings, monkeypatch: pytest.MonkeyPatch, **chosen: str | int) -> Iterator[StandIns]:
    """Yield a runner in this process, with these settings in its environment, and stand-ins for broker and drivers."""
    settings = settings.model_copy(update=chosen)
    for name, value in (*chosen.items(), ("datasets", settings.datasets)):
        monkeypatch.setenv(f"HEADRACE_{name.upper()}", str(value))
    found = StandIns(settings)
    found.stand_in(monkeypatch)
    try:
        yield found
    finally:
        found.end()
