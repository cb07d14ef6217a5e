"""The address of a Kafka cluster: the options of both clients, and settings that cannot work together."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.ground.kafka_address import KafkaAddress, KafkaSecurity, client_options, source_options
from include.ground.ports import listener
from include.ground.settings import InvalidSetting, PasswordUnreadable, Settings
from include.observe.processes import observe_process, unsupervised_status
from include.state.process_states import BROKER, ProcessState
from include.state.run_files import bootstrap_servers

SECURED = KafkaSecurity("SASL_SSL", "SCRAM-SHA-512", "user", 'pass"word\\', "/etc/ca.pem")


def test_plain_address_needs_no_options() -> None:
    assert client_options("a:1,b:2") == {"bootstrap.servers": "a:1,b:2"}
    assert source_options("a:1") == {"kafka.bootstrap.servers": "a:1"}


def test_secured_address_gives_both_clients_the_same_login() -> None:
    address = KafkaAddress("a:1", SECURED)
    assert address == "a:1"
    assert client_options(address) == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "user",
        "sasl.password": 'pass"word\\',
        "ssl.ca.location": "/etc/ca.pem",
    }
    options = source_options(address)
    assert options.pop("kafka.sasl.jaas.config") == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="user" password="pass\\"word\\\\";'
    )
    assert options == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/etc/ca.pem",
    }
    assert "pass" not in repr(SECURED)


def test_settings_give_the_address_with_the_password_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    settings = Settings(
        state=tmp_path,
        kafka_bootstrap="kafka:9093",
        kafka_security="SASL_PLAINTEXT",
        kafka_user="me",
        kafka_password_file=tmp_path / "password",
    )
    address = bootstrap_servers(settings)
    assert isinstance(address, KafkaAddress)
    assert address.security == KafkaSecurity("SASL_PLAINTEXT", "SCRAM-SHA-512", "me", "secret")
    (tmp_path / "password").unlink()
    with pytest.raises(PasswordUnreadable, match="HEADRACE_KAFKA_PASSWORD_FILE"):
        bootstrap_servers(settings)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"kafka_security": "SASL_SSL", "kafka_bootstrap": "a:1"}, "needs HEADRACE_KAFKA_USER"),
        ({"kafka_security": "SSL"}, "needs HEADRACE_KAFKA_BOOTSTRAP"),
        ({"kafka_bootstrap": "http://a"}, "should match pattern"),
    ],
)
def test_settings_that_cannot_log_in_are_refused(tmp_path: Path, given: dict[str, str], why: str) -> None:
    with pytest.raises((InvalidSetting, ValueError), match=why):
        Settings(state=tmp_path, **given)  # type: ignore[arg-type]


def test_own_kafka_is_running_while_a_server_accepts_connections(tmp_path: Path) -> None:
    with listener(0) as server:
        port = server.getsockname()[1]
        settings = Settings(state=tmp_path, kafka_bootstrap=f"127.0.0.1:1,127.0.0.1:{port}")
        status = observe_process(settings, BROKER)
        assert (status.state, status.pid) == (ProcessState.RUNNING, None)
        assert "your own Kafka" in status.detail
    assert unsupervised_status(settings, BROKER).state is ProcessState.WAITING
