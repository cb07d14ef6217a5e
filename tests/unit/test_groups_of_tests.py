"""`make test-all`: verdicts per state of the clone, what a machine lacks, an interruption, and what a group leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from infra.test_groups import CLUSTER, ELSEWHERE, GROUPS, MARK, Group, Need, Records, Run, named

PASSES = (sys.executable, "-c", "pass")
FAILS = (sys.executable, "-c", "print('a reason'); raise SystemExit(3)")
# A server in a session of its own, as a broker is, and a group that waits for ever.
WAIT = "import time; time.sleep(600)"
SERVER = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{WAIT}'], start_new_session=True)"
FOREVER = f"{SERVER}; {WAIT}"


def ended(records: Records, *groups: Group) -> tuple[int, dict[str, str], list[str]]:
    said: list[str] = []
    run = Run(groups, records, said.append)
    code = run.run()
    return code, {name: verdict.verdict for name, verdict in run.verdicts.items()}, said


def test_what_is_green_is_not_run_again_and_what_is_red_is(tmp_path: Path) -> None:
    records, seen = Records(tmp_path / "abc"), tmp_path / "seen"
    counted = (sys.executable, "-c", f"open({str(seen)!r}, 'a').write('x')")
    groups = Group("good", command=counted), Group("bad", command=FAILS)
    code, verdicts, said = ended(records, *groups)
    assert (code, verdicts) == (1, {"good": "green", "bad": "red"})
    assert "a reason" in "\n".join(said), "the end of a red group's output is shown"
    code, verdicts, said = ended(records, groups[0], Group("bad", command=PASSES))
    assert (code, verdicts) == (0, {"good": "green", "bad": "green"})
    assert seen.read_text() == "x"
    assert ended(Records(tmp_path / "def"), groups[0])[0] == 0
    assert seen.read_text() == "xx", "another commit has no verdicts yet"


def test_a_group_whose_server_is_missing_is_not_green_and_names_the_remedy(tmp_path: Path) -> None:
    lacking = Group("far", needs=(Need("a Docker engine", lambda: False, "apt-get install docker.io"),), command=PASSES)
    code, verdicts, said = ended(Records(tmp_path / "abc"), lacking, Group("near", command=PASSES))
    assert (code, verdicts) == (1, {"far": "missing", "near": "green"})
    assert "apt-get install docker.io" in said[-2]


def test_a_case_that_is_skipped_makes_its_group_red(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_a(): pass\n@pytest.mark.skip\ndef test_b(): pass\n", "utf-8"
    )
    records = Records(tmp_path / "abc")
    group = Group("some", ("-c", os.devnull, "--rootdir", str(tmp_path)), (str(tmp_path),))
    code, verdicts, _ = ended(records, group)
    assert (code, verdicts) == (1, {"some": "red"})
    found = records.find(group)
    assert found is not None
    assert (found.cases, found.note) == (2, "1 skipped")


def test_a_server_that_a_group_leaves_running_is_ended_and_named(tmp_path: Path) -> None:
    records = Records(tmp_path / "abc")
    code, _, said = ended(records, Group("leaves", command=(sys.executable, "-c", SERVER)))
    assert code == 1
    assert "left running" in said[-1]
    assert processes(records) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_servers_and_goes_on_from_its_group(tmp_path: Path, number: int) -> None:
    records, seen = Records(tmp_path / "abc"), tmp_path / "seen"
    first = Group("first", command=(sys.executable, "-c", f"open({str(seen)!r}, 'a').write('x')"))
    waits = Group("second", command=(sys.executable, "-c", FOREVER))
    run = start(records, [first, waits])
    within(30, lambda: len(processes(records)) == 2)
    run.send_signal(number)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted" in said
    assert processes(records) == []
    code, verdicts, _ = ended(records, first, Group("second", command=PASSES))
    assert (code, verdicts, seen.read_text()) == (0, {"first": "green", "second": "green"}, "x")


def start(records: Records, groups: Sequence[Group]) -> subprocess.Popen[str]:
    """Start a process that runs these groups."""
    code = (
        f"from pathlib import PosixPath\nfrom infra.test_groups import *\nsys.exit(Run({groups!r}, {records!r}).run())"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def processes(records: Records) -> list[int]:
    """Return the processes that bear the mark of these records."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == records.mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def within(seconds: float, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{seconds} s passed"
        time.sleep(0.1)


def test_every_folder_of_tests_belongs_to_a_group() -> None:
    """`fast` runs what pyproject.toml names, and no folder of extended tests is in no group."""
    tests = Path(__file__).parents[1]
    folders = {f"tests/{path.parent.name}" for path in tests.glob("*/test_*.py")}
    assert folders == {path for group in GROUPS for path in group.paths if (tests.parent / path).is_dir()}


def test_a_file_that_a_group_leaves_out_is_of_another_group() -> None:
    assert {f"--ignore={path}" for group in CLUSTER for path in group.paths} == set(ELSEWHERE) != set()
    assert set(CLUSTER) <= set(GROUPS)
    assert all((Path(__file__).parents[2] / path).is_file() for group in CLUSTER for path in group.paths)


def test_a_list_selects_groups_in_their_order_and_an_unknown_name_is_refused() -> None:
    assert [group.name for group in named("s3,standalone")] == ["standalone", "s3"]
    with pytest.raises(SystemExit, match="there is no group mesos; groups: fast "):
        named("yarn,mesos")


def test_paths_of_the_caller_replace_those_of_the_group_and_options_do_not() -> None:
    group = Group("kills", ("-m", "extended"), ("tests/recovery",))
    assert group.argv(["-x"])[3:] == ["-m", "extended", "tests/recovery", "-x"]
    named = "tests/recovery/test_kills.py::test_x"
    assert group.argv([named])[3:] == ["-m", "extended", named]
