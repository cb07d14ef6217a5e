"""The audit's JVM that does not start, or cannot compile its reader: a reason, and no process is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from include.audit import kafka
from include.audit.kafka import AuditUnavailable, read_chunks
from include.ground.settings import CLONE, Settings

KILLED = """
import sys
from pathlib import Path

from include.audit.kafka import JVM, KafkaReadFailed

try:
    with JVM.reader(Path(sys.argv[1])) as reader:
        JVM.process.kill()
        JVM.process.wait()
        reader.java.read("file", 0, 1, 1)
except KafkaReadFailed as error:
    print(error)
"""


def read(jars: Path) -> None:
    """Read a partition of a broker that is never contacted."""
    list(read_chunks("localhost:1", "topic", 0, 0, 1, jars))


def test_audit_without_jars_names_the_missing_one(tmp_path: Path) -> None:
    with pytest.raises(AuditUnavailable, match=f"{tmp_path}/broker has no jar of kafka-clients"):
        read(tmp_path)


def test_jvm_that_does_not_start_ends_the_audit(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "JVM_OPTIONS", ("-XX:NoSuchOption",))
    with pytest.raises(AuditUnavailable, match="the JVM that reads Kafka did not start"):
        read(settings.jars)


def test_jvm_that_cannot_compile_the_reader_is_ended(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start, started = kafka._gateway, list[Any]()

    def noted(*given: Any) -> Any:
        started.append(start(*given))
        return started[-1]

    source = tmp_path / "KafkaRecords.java"
    source.write_text("public final class")
    monkeypatch.setattr(kafka, "SOURCE", source)
    monkeypatch.setattr(kafka, "_gateway", noted)
    with pytest.raises(AuditUnavailable, match="CompileException"):
        read(settings.jars)
    assert started[0].java_process.poll() is not None


@pytest.mark.parametrize("logging_of_process", ["", "import logging; logging.basicConfig()\n"])
def test_jvm_that_is_killed_prints_no_traceback(settings: Settings, logging_of_process: str) -> None:
    """Ctrl-C ends the JVM too. py4j printed a traceback for each call, by a handler of the process or by its own."""
    command = [sys.executable, "-c", logging_of_process + KILLED, str(settings.jars)]
    done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True, check=True)
    assert "the JVM that reads Kafka was killed by SIGKILL" in done.stdout
    assert done.stderr == ""
