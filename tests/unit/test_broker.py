"""The broker's start up to the JVM: ports, stored identity, configuration, refusals; translated Kafka errors."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from error_codes import raises

from include.ground.errors import Terminal
from include.ground.java import Java, JavaMissing, find_java, major_version
from include.ground.kafka import (
    BrokerUnreachable,
    KafkaRefused,
    PartitionsNotReady,
    TopicMissing,
    cluster_id,
    log_end_offsets,
    translate_error,
)
from include.ground.paths import kafka_path
from include.ground.ports import PortInUse, free_ports, is_free, is_open
from include.ground.settings import Settings
from include.run.child_process import spawn
from include.run.kafka_broker import (
    BrokerNode,
    assign_ports,
    broker_command,
    data_path,
    existing_cluster_id,
    new_cluster_id,
    read_node,
    start_broker,
    write_node,
    write_properties,
)
from include.run.start_stop import await_working
from include.state.process_states import BROKER, ProcessState, ProcessStatus

JAVA = Java(Path("/a java/bin/java"), 17, "17.0.1")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state=tmp_path / "a state, with a comma", jars=tmp_path / "jars")


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server


def properties(settings: Settings) -> dict[str, str]:
    lines = (kafka_path(settings) / "server.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_stored_ports_are_reused_while_they_are_free() -> None:
    port, controller = free_ports(2)
    node = assign_ports(BrokerNode("id", port, controller), 0)
    assert (node.port, node.controller_port) == (port, controller)


def test_stored_port_that_is_taken_is_replaced(taken: socket.socket) -> None:
    held = taken.getsockname()[1]
    node = assign_ports(BrokerNode("id", held, held), 0)
    assert held not in (node.port, node.controller_port)
    assert node.port != node.controller_port


def test_requested_port_is_used_or_refused_with_its_holder(taken: socket.socket) -> None:
    (free,) = free_ports(1)
    assert assign_ports(BrokerNode("id", 1, free), free).port == free
    assert assign_ports(BrokerNode("id", 1, free), free).controller_port != free
    held = taken.getsockname()[1]
    with pytest.raises(PortInUse, match=str(held)) as refused:
        assign_ports(BrokerNode("id"), held)
    assert f"pid {os.getpid()}" in refused.value.holder


def test_port_is_either_free_or_open(taken: socket.socket) -> None:
    held = taken.getsockname()[1]
    assert is_open(held)
    assert not is_free(held)
    (free,) = free_ports(1)
    assert is_free(free)
    assert not is_open(free)


def test_configuration_listens_on_loopback_only_and_never_expires_records(settings: Settings) -> None:
    write_properties(settings, BrokerNode("id", 19092, 19093))
    properties_of_broker = properties(settings)
    hosts = re.findall(
        r"//([^:]+):", properties_of_broker["listeners"] + "," + properties_of_broker["advertised.listeners"]
    )
    assert set(hosts) == {"127.0.0.1"}
    assert properties_of_broker["log.message.timestamp.type"] == "LogAppendTime"
    assert properties_of_broker["log.retention.ms"] == "-1"
    assert properties_of_broker["auto.create.topics.enable"] == "false"
    assert properties_of_broker["log.dirs"] == "data"
    assert "$" not in "".join(properties_of_broker.values())
    replicas = {key for key in properties_of_broker if key.endswith("replication.factor") or key.endswith("min.isr")}
    assert replicas
    assert {properties_of_broker[key] for key in replicas} == {"1"}


def test_cluster_id_is_stored(settings: Settings) -> None:
    node = read_node(settings)
    write_node(settings, node)
    assert read_node(settings) == node
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", new_cluster_id())


def test_cluster_id_of_formatted_storage_takes_precedence(settings: Settings) -> None:
    """An interrupted first start may have formatted the storage without recording it."""
    data_path(settings).mkdir(parents=True)
    (data_path(settings) / "meta.properties").write_text("#\nnode.id=1\ncluster.id=abc-_DEF\nversion=1\n")
    assert existing_cluster_id(settings) == "abc-_DEF"


def test_missing_data_of_a_formatted_broker_is_refused(settings: Settings) -> None:
    write_node(settings, BrokerNode("id", formatted=True))
    with raises(Terminal, "broker-data-missing") as refused:
        read_node(settings)
    assert "node.json" in refused.value.remedy


def test_broker_command_limits_its_memory(settings: Settings) -> None:
    command = broker_command(settings.model_copy(update={"profile": "small"}), JAVA)
    assert "-Xmx256m" in command
    assert f"-Djava.io.tmpdir={settings.state}/kafka/temporary" in command
    assert command[command.index("-cp") + 1] == f"{settings.jars}/broker/*"


def test_missing_jars_prevent_the_start(settings: Settings) -> None:
    with raises(Terminal, "jar-missing"):
        start_broker(settings)
    assert not kafka_path(settings).exists()


def test_missing_java_prevents_the_start(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    # Where a machine has no Java, set-up has put one there.
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(JavaMissing):
        start_broker(settings)


def fake_java(folder: Path, version: str) -> Path:
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    launcher.chmod(0o755)
    return launcher


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home of java", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "home of java"), "PATH": f"{other.parent}:/usr/bin:/bin"}
    assert find_java(environ) == Java(home, 21, "21.0.2")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_old_java_is_refused(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path, version)
    with pytest.raises(JavaMissing, match=re.escape(version)):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})


def test_java_home_without_java_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="JAVA_HOME"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25-ea", 25), ("21", 21), ("", 0)])
def test_major_version_is_parsed(text: str, major: int) -> None:
    assert major_version(text) == major


def test_log_of_a_crashed_broker_is_reported(settings: Settings) -> None:
    code = "import sys; sys.exit('kafka cannot do this')"
    extra = {"bootstrap": "127.0.0.1:1", "port": 1, "cluster_id": "x"}
    spawn(settings, "broker", [sys.executable, "-c", code], Path.cwd(), os.environ, extra)
    failure = await_working(settings, ProcessStatus(BROKER, None, ProcessState.STOPPED), 0, print)
    assert failure is not None
    assert "kafka cannot do this" in failure.tail
    assert "is crashed" in failure.what


def test_unreachable_broker_is_reported_within_the_timeout(capfd: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    began = time.monotonic()
    for ask in (cluster_id, lambda address, timeout: log_end_offsets(address, "flights", timeout)):
        with pytest.raises(BrokerUnreachable) as failure:
            ask(f"127.0.0.1:{port}", 1.0)
        assert str(port) in failure.value.bootstrap
    assert time.monotonic() - began < 10
    assert capfd.readouterr().err == "", "librdkafka's own lines are silenced"


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, TopicMissing),
        (KafkaError.NOT_LEADER_FOR_PARTITION, PartitionsNotReady),
        (KafkaError._TRANSPORT, BrokerUnreachable),
        (KafkaError._TIMED_OUT, BrokerUnreachable),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaRefused),
    ],
)
def test_kafka_errors_are_translated(code: int, becomes: type[Exception]) -> None:
    assert type(translate_error(KafkaException(KafkaError(code)), "asking", "127.0.0.1:1", "flights")) is becomes
