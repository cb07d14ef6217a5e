"""All tests, in groups: `make test-all` runs them from beginning to end, and after an interruption from where it was.

Each group is a process of its own. Its verdict is kept in `.cache/test-all/`, under the commit and the changes that
it was found for; a group that is green for them is not run again. Whatever a group leaves running is ended by pid.

    python -m infra.test_groups            every group, then one table; exit code 0 only if all are green
    python -m infra.test_groups yarn,s3    these groups, then their table; verdicts are shared with those of all
    python -m infra.test_groups stack      this group in the terminal, without a record; options for pytest after it
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

import psutil

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / ".cache" / "test-all"
MARK = "TEST_GROUPS_OF"
"""The variable that every process of a group inherits; its value is the folder of the records."""
GREEN, RED, MISSING, INTERRUPTED = "green", "red", "missing", "interrupted"
TO_TEAR_DOWN, TO_END = 120.0, 20.0
"""Seconds that an interrupted group has to stop its servers, and that each of those has before SIGKILL."""


@dataclass(frozen=True)
class Need:
    """What a group cannot run without, and the command that brings it."""

    what: str
    is_met: Callable[[], bool]
    remedy: str


def program(name: str, package: str = "") -> Need:
    """Return the need of a program on PATH, from a Debian package."""
    return Need(name, lambda: shutil.which(name) is not None, f"apt-get install {package or name}")


def has_initdb() -> bool:
    """Whether PostgreSQL is installed, whose programs Debian keeps off PATH."""
    return any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def has_docker() -> bool:
    """Whether a Docker engine answers."""
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=False).returncode == 0
    return False


CHROMIUM = program("chromium")
DOCKER = Need("a Docker engine that answers", has_docker, "apt-get install docker.io && systemctl start docker")
POSTGRESQL = Need("initdb", has_initdb, "apt-get install postgresql")
SUPERUSER = Need("root, for network namespaces", lambda: os.geteuid() == 0, "sudo make test-all")


@dataclass(frozen=True)
class Group:
    """Tests that one process runs: pytest with `options` and `paths`, or another `command`."""

    name: str
    options: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    modules: str = ""
    """The folder of test modules that this group borrows."""
    command: tuple[str, ...] = ()

    def argv(self, more: Sequence[str] = ()) -> list[str]:
        """Return the command; paths among `more` replace the group's."""
        names_paths = any(Path(ROOT, word.partition("::")[0]).exists() for word in more)
        pytest = (sys.executable, "-m", "pytest", *self.options, *(() if names_paths else self.paths))
        return [*(self.command or pytest), *more]

    def environment(self, mark: str = "") -> dict[str, str]:
        """Return the variables of its process, with the mark by which its servers are found."""
        borrowed = {"PYTHONPATH": self.modules} if self.modules else {}
        return {**os.environ, **borrowed, MARK: mark}

    def missing(self) -> str:
        """Return what this machine lacks, with the commands that bring it; "" for nothing."""
        lacking = [need for need in self.needs if not need.is_met()]
        remedies = dict.fromkeys(need.remedy for need in lacking)
        return f"{', '.join(need.what for need in lacking)}: {'; '.join(remedies)}" if lacking else ""


# Two workers share the files; each file's tests stay on one worker, since they may share a broker or a platform.
PARALLEL = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
# Tables and executors of a cluster; `kills` leaves these files out, so that `make test-all` runs each once.
CLUSTER = (
    Group("standalone", ("-v", "-s", "--durations=0"), ("tests/recovery/test_cluster.py",)),
    Group(
        "yarn",
        ("-v", "-s", "--durations=0"),
        ("tests/recovery/test_yarn.py", "tests/recovery/test_files_in_hdfs.py"),
    ),
    Group(
        "s3",
        ("-v", "-s", "--durations=0"),
        tuple(f"tests/recovery/test_{name}.py" for name in ("tables_in_a_store", "plans_in_a_store", "object_store")),
    ),
)
ELSEWHERE = tuple(f"--ignore={path}" for group in CLUSTER for path in group.paths)
# Named, since pytest does not ignore a folder that pyproject.toml names.
GROUPS = (
    Group("fast", ("-m", "not extended", *PARALLEL)),
    Group(
        "tables",
        ("-s", "--durations=0", "-m", "extended"),
        ("tests/parity", "tests/cases", "tests/architecture", "tests/unit"),
        (CHROMIUM,),
    ),
    Group("kills", ("-s", "--durations=0", "-m", "extended"), ("tests/recovery", *ELSEWHERE), (CHROMIUM,)),
    *CLUSTER,
    Group("stack", ("-v",), ("tests/stack",), (CHROMIUM,)),
    Group("airflow-package", ("-v",), ("tests/remote_airflow",), modules="tests/recovery"),
    Group(
        "observability",
        ("-v",),
        ("tests/observability",),
        (
            program("promtool", "prometheus"),
            program("prometheus"),
            program("prometheus-alertmanager"),
            program("npm"),
        ),
    ),
    Group("containers", ("-v",), ("tests/containers",), (DOCKER,), "tests/unit"),
    Group("cdc", ("-v", "-s"), ("tests/cdc",), (POSTGRESQL,), "tests"),
    Group(
        "hosts",
        ("-v", "-s"),
        ("tests/hosts",),
        (
            SUPERUSER,
            program("ip", "iproute2"),
            POSTGRESQL,
            program("linux.uml", "user-mode-linux"),
            program("mount.nfs4", "nfs-common"),
            program("rpc.nfsd", "nfs-kernel-server"),
            program("busybox", "busybox-static"),
        ),
        "tests/recovery",
    ),
    Group("bare", needs=(DOCKER,), command=("bash", "infra/bare/test_bare.sh")),
)


@dataclass(frozen=True)
class Verdict:
    """How a group ended."""

    group: str
    verdict: str
    cases: int = 0
    seconds: float = 0.0
    note: str = ""

    def line(self) -> str:
        """Return its line of the table."""
        minutes = f"{self.seconds / 60:.1f}" if self.seconds else ""
        return f"{self.group:<16}{self.cases or '':>6}  {self.verdict:<12}{minutes:>7}  {self.note}".rstrip()


@dataclass(frozen=True)
class Records:
    """The verdicts for one state of the clone."""

    folder: Path

    @property
    def mark(self) -> str:
        """What every process of these groups bears, also for another state of the clone."""
        return str(self.folder.parent)

    def path(self, group: Group, suffix: str) -> Path:
        """Return a group's file: `json` its verdict, `log` its output, `xml` its cases."""
        return self.folder / f"{group.name}.{suffix}"

    def find(self, group: Group) -> Verdict | None:
        """Return the group's last verdict, None before the first."""
        with suppress(FileNotFoundError):
            return Verdict(**json.loads(self.path(group, "json").read_text("utf-8")))
        return None

    def save(self, group: Group, verdict: Verdict) -> Verdict:
        """Keep a verdict."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path(group, "json").write_text(json.dumps(asdict(verdict), indent=1), "utf-8")
        return verdict

    def cases(self, group: Group) -> tuple[int, int]:
        """Return how many cases pytest ran, and how many of them it skipped."""
        with suppress(FileNotFoundError, ElementTree.ParseError):
            suites = ElementTree.parse(self.path(group, "xml")).getroot().iter("testsuite")
            counts = [(int(suite.get("tests", "0")), int(suite.get("skipped", "0"))) for suite in suites]
            return sum(tests for tests, _ in counts), sum(skipped for _, skipped in counts)
        return 0, 0


def state_of_clone() -> str:
    """Return the commit, and a hash of the changes to it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    commit = git("rev-parse", "--short=12", "HEAD").strip()
    changes = git("diff", "HEAD")
    for path in git("ls-files", "--others", "--exclude-standard", "-z").split("\0")[:-1]:
        changes += path + hashlib.sha256((ROOT / path).read_bytes()).hexdigest()
    return f"{commit}-{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else commit


def marked(mark: str) -> list[psutil.Process]:
    """Return every process that a group has started and that still runs."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def end_marked(mark: str) -> list[str]:
    """End what a group left running, first by SIGTERM, then by SIGKILL; return the command lines."""
    left = marked(mark)
    named = []
    for process in left:
        with suppress(psutil.Error):
            named.append(" ".join(process.cmdline())[:100])
            process.terminate()
    psutil.wait_procs(left, TO_END)
    for process in marked(mark):
        with suppress(psutil.Error):
            process.kill()
    return named


@dataclass
class Run:
    """One run over the groups, in their order."""

    groups: Sequence[Group]
    records: Records
    say: Callable[[str], None] = partial(print, flush=True)
    verdicts: dict[str, Verdict] = field(default_factory=dict)

    def run(self) -> int:
        """Run what is not green yet, print the table, and return the exit code."""
        try:
            with interruptible():
                for group in self.groups:
                    self.verdicts[group.name] = self._verdict(group)
        except KeyboardInterrupt:
            self.say("interrupted; the same command goes on from here")
            self._print()
            return 130
        self._print()
        return 0 if all(verdict.verdict == GREEN for verdict in self.verdicts.values()) else 1

    def _verdict(self, group: Group) -> Verdict:
        known = self.records.find(group)
        if known is not None and known.verdict == GREEN:
            self.say(f"== {group.name}: green already")
            return known
        if missing := group.missing():
            self.say(f"== {group.name}: not run, this machine lacks {missing}")
            return Verdict(group.name, MISSING, note=missing)
        return self._measured(group)

    def _measured(self, group: Group) -> Verdict:
        """Run the group, whatever it starts ends with it."""
        log, xml = self.records.path(group, "log"), self.records.path(group, "xml")
        log.parent.mkdir(parents=True, exist_ok=True)
        xml.unlink(missing_ok=True)
        self.say(f"== {group.name}: {log.relative_to(ROOT) if log.is_relative_to(ROOT) else log}")
        more = [] if group.command else [f"--junitxml={xml}"]
        began = time.monotonic()
        try:
            code = run_process(group.argv(more), group.environment(self.records.mark), log)
        except KeyboardInterrupt:
            self.verdicts[group.name] = Verdict(group.name, INTERRUPTED, seconds=time.monotonic() - began)
            raise
        finally:
            left = end_marked(self.records.mark)
        cases, skipped = self.records.cases(group)
        faults = [f"exit code {code}"] if code else []
        faults += [f"{skipped} skipped"] if skipped else []
        faults += [f"left running: {left[0]}"] if left else []
        if faults:
            self.say(tail(log))
        verdict = Verdict(group.name, RED if faults else GREEN, cases, time.monotonic() - began, "; ".join(faults))
        return self.records.save(group, verdict)

    def _print(self) -> None:
        """Print the table."""
        self.say(f"\n{self.records.folder.name}\n{'group':<16}{'cases':>6}  {'verdict':<12}{'minutes':>7}")
        for group in self.groups:
            self.say(self.verdicts.get(group.name, Verdict(group.name, "not run")).line())


def run_process(argv: Sequence[str], environment: dict[str, str], log: Path) -> int:
    """Run a group's command to its end; when interrupted, give it time to stop its servers."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait()
        except KeyboardInterrupt:
            # pytest's fixtures end their servers when each of its processes is interrupted, as by Ctrl-C.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(TO_TEAR_DOWN)
            raise


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into the KeyboardInterrupt of Ctrl-C."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def tail(log: Path, lines: int = 30) -> str:
    """Return a log's last lines."""
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of this clone's groups, since whatever bears their mark is ended."""
    RECORDS.mkdir(parents=True, exist_ok=True)
    with (RECORDS / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("headrace: make test-all or test-cluster already runs in this clone; nothing was tested")
        yield


def named(names: str) -> tuple[Group, ...]:
    """Return the groups of these names, which commas separate, in the order of all."""
    known, wanted = {group.name: group for group in GROUPS}, names.split(",")
    if unknown := [name for name in wanted if name not in known]:
        sys.exit(f"headrace: there is no group {unknown[0]}; groups: {' '.join(known)}")
    return tuple(group for group in GROUPS if group.name in wanted)


def in_terminal(name: str, more: Sequence[str]) -> int:
    """Run one group with its output in the terminal."""
    (group,) = named(name)
    if missing := group.missing():
        sys.exit(f"headrace: nothing was tested, this machine lacks {missing}")
    os.chdir(ROOT)
    os.execvpe(group.argv()[0], group.argv(more), group.environment())


def main(words: Sequence[str]) -> int:
    """Run one group in the terminal; or those of a list, or all, with their table."""
    if words and "," not in words[0]:
        return in_terminal(words[0], words[1:])
    groups = named(words[0]) if words else GROUPS
    with alone():
        records = Records(RECORDS / state_of_clone())
        end_marked(records.mark)
        return Run(groups, records).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
