"""A JVM that has ended is the reason of what fails without it: how it ended, and what it said last."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from py4j.java_gateway import GatewayParameters
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext

from include.ground import processes as process_end
from spark_jobs.stream.back_off import attempt
from spark_jobs.tables import log_lines
from spark_jobs.tables.log_lines import JvmEnded, error_reason

OUT_OF_MEMORY = "java.lang.OutOfMemoryError: Java heap space"
REFUSED = ConnectionRefusedError(111, "Connection refused")


class Gateway:
    """What PySpark keeps of its JVM; it listens on a port until it is told to `close`."""

    def __init__(self, *code: str) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.gateway_parameters = GatewayParameters(port=self.server.getsockname()[1])
        self.proc = subprocess.Popen([sys.executable, "-c", *code])

    def kill(self) -> None:
        self.proc.kill()
        self.close()

    def close(self) -> None:
        self.server.close()


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """A function that starts a process in place of the JVM; its log is empty."""
    started: list[Gateway] = []

    def start(*code: str) -> Gateway:
        started.append(Gateway(*code))
        monkeypatch.setattr(SparkContext, "_gateway", started[0])
        return started[0]

    (tmp_path / "log").write_text("")
    monkeypatch.setattr(log_lines, "_own_log", lambda: tmp_path / "log")
    yield start
    for each in started:
        each.proc.kill()
        each.proc.wait()
        each.close()


def sleeping(jvm: Callable[..., Gateway]) -> Gateway:
    return jvm("import time; time.sleep(60)")


def test_killed_jvm_is_named_instead_of_a_refused_connection(jvm: Callable[..., Gateway]) -> None:
    sleeping(jvm).kill()
    assert error_reason(REFUSED).startswith("the JVM was killed by SIGKILL; this process ends")


def test_end_is_waited_for_only_when_the_connection_broke(
    jvm: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Mock(side_effect=subprocess.TimeoutExpired("java", log_lines.END_SECONDS))
    gateway = sleeping(jvm)
    with monkeypatch.context() as patched:
        patched.setattr(gateway.proc, "wait", wait)
        assert error_reason(ValueError("other")) == "other"
        assert wait.mock_calls == []
        gateway.close()
        assert error_reason(REFUSED) == str(REFUSED)
        assert len(wait.mock_calls) == 1


def test_broken_connection_may_be_the_cause_of_the_error(jvm: Callable[..., Gateway]) -> None:
    jvm("import sys, time; time.sleep(0.5); sys.exit(3)").close()
    error = ValueError("no rows")
    error.__cause__ = REFUSED
    assert error_reason(error).startswith("the JVM ended with exit code 3;")


@pytest.mark.parametrize(
    "error", [Py4JNetworkError("Answer from Java side is empty"), Py4JError("no answer"), EOFError()]
)
def test_end_of_the_jvm_is_waited_for_when_a_call_gets_no_answer(jvm: Callable[..., Gateway], error: Exception) -> None:
    jvm("import sys, time; time.sleep(0.5); sys.exit(3)").close()
    assert error_reason(error).startswith("the JVM ended with exit code 3;")


def test_last_words_and_the_kernels_kill_are_part_of_the_reason(
    jvm: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = ["SIGSEGV", "x" * log_lines.TAIL_BYTES, "Cannot allocate memory", OUT_OF_MEMORY, "later"]
    (tmp_path / "log").write_text("\n".join(lines))
    sleeping(jvm).kill()
    monkeypatch.setattr(process_end, "kernel_kills", lambda: process_end.KILLS_BEFORE + 1)
    reason = error_reason(REFUSED)
    assert "as the kernel does when memory runs out" in reason
    assert f"which it did meanwhile: {OUT_OF_MEMORY}; this process ends" in reason


def test_words_that_were_written_long_before_the_end_are_not_its_reason(
    jvm: Callable[..., Gateway], tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(f"{OUT_OF_MEMORY}\n" + "x" * log_lines.TAIL_BYTES)
    sleeping(jvm).kill()
    assert error_reason(REFUSED).startswith("the JVM was killed by SIGKILL; this process ends")


def test_log_is_the_file_of_the_processs_standard_error(tmp_path: Path) -> None:
    code = "from spark_jobs.tables.log_lines import _own_log; print(_own_log())"
    found = []
    for error in ((tmp_path / "log").open("wb"), subprocess.PIPE):
        found.append(
            subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=error, text=True).stdout
        )
    assert found == [f"{tmp_path / 'log'}\n", "None\n"]


def test_work_is_not_tried_again_without_a_jvm(jvm: Callable[..., Gateway]) -> None:
    def work() -> bool:
        raise REFUSED

    gateway = sleeping(jvm)
    assert not attempt(lambda: bool(1 // 0), lambda _: False)
    gateway.kill()
    with pytest.raises(JvmEnded):
        attempt(work, lambda _: False)


@pytest.mark.parametrize("error", [REFUSED, ConnectionResetError("reset"), EOFError("cut off"), Py4JError("no method")])
def test_lost_connection_to_another_process_is_not_the_jvms_and_nothing_is_waited_for(
    jvm: Callable[..., Gateway], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The registry, the object store and PostgreSQL refuse connections too; the loop must not stand still for it."""
    gateway = sleeping(jvm)
    waits = Mock(wraps=gateway.proc.wait)
    monkeypatch.setattr(gateway.proc, "wait", waits)
    monkeypatch.setattr(log_lines, "END_SECONDS", 0.1)
    wrapped = ValueError("the registry does not answer")
    wrapped.__cause__ = error
    assert error_reason(error) == str(error)
    assert error_reason(wrapped) == "the registry does not answer"
    assert attempt(Mock(side_effect=wrapped), str) == "the registry does not answer"
    waits.assert_not_called()


def test_what_java_throws_is_the_reason_and_not_the_object_that_was_called() -> None:
    thrown = "java.lang.IllegalStateException: t-0, offset 3: x"
    text = f"An error occurred while calling o48.awaitAll.\n: {thrown}\n\tat a.b(c)"
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.__class__ = type("Shown", (Py4JJavaError,), {"__str__": lambda _: text})
    assert error_reason(error) == thrown
