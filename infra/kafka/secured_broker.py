"""A secured Kafka broker on this machine, to try Headrace with a cluster that is not its own: TLS, SCRAM, access lists.

It creates certificates with Java's keytool, the users `admin` and `headrace`, and for the second one the least rights
that Headrace needs on some topics. It prints the settings, and runs until Ctrl-C.

Usage: python -m infra.kafka.secured_broker FOLDER TOPIC…
"""

from __future__ import annotations

import os
import secrets
import string
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from include.ground.java import find_java
from include.ground.ports import LOOPBACK, free_ports
from include.ground.settings import Settings, load_settings
from infra.kafka.broker_process import PROPERTIES, await_open, format_storage, start_broker

HERE = Path(__file__).parent
USER, MECHANISM = "headrace", "SCRAM-SHA-512"
# Kafka's id of a cluster: 22 characters of base64.
CLUSTER = "aGVhZHJhY2Vfc2VjdXJlZA"
RIGHTS = (
    (ResourceType.TOPIC, ResourcePatternType.LITERAL, "READ"),
    (ResourceType.TOPIC, ResourcePatternType.LITERAL, "WRITE"),
    (ResourceType.TOPIC, ResourcePatternType.LITERAL, "CREATE"),
    (ResourceType.TOPIC, ResourcePatternType.LITERAL, "DESCRIBE"),
    (ResourceType.TOPIC, ResourcePatternType.LITERAL, "DESCRIBE_CONFIGS"),
    (ResourceType.GROUP, ResourcePatternType.PREFIXED, "READ"),
)
"""What the user of Headrace may do: on its topics, and with consumer groups whose names begin with `headrace-`."""


@dataclass(frozen=True)
class SecuredBroker:
    """A running broker: its process, address, and the files with the user's password and the certificate (PEM)."""

    process: subprocess.Popen[bytes]
    bootstrap: str
    password_file: Path
    ca_file: Path

    def settings(self) -> dict[str, str]:
        """Return the variables with which Headrace uses it."""
        return {
            "HEADRACE_KAFKA_BOOTSTRAP": self.bootstrap,
            "HEADRACE_KAFKA_SECURITY": "SASL_SSL",
            "HEADRACE_KAFKA_MECHANISM": MECHANISM,
            "HEADRACE_KAFKA_USER": USER,
            "HEADRACE_KAFKA_PASSWORD_FILE": str(self.password_file),
            "HEADRACE_KAFKA_CA_FILE": str(self.ca_file),
        }


def start_secured_broker(folder: Path, settings: Settings, topics: Sequence[str]) -> SecuredBroker:
    """Start a broker with its files in `folder`; grant the user RIGHTS on `topics`."""
    folder.mkdir(parents=True)
    java = find_java(os.environ).path
    port, controller_port = free_ports(2)
    admin_password, password = secrets.token_urlsafe(12), secrets.token_urlsafe(12)
    template = string.Template((HERE / "secured.properties").read_text())
    text = template.substitute(port=port, controller_port=controller_port, password=admin_password)
    (folder / PROPERTIES).write_text(text)
    _create_certificate(folder, java.with_name("keytool"), admin_password)
    users = [
        f"{MECHANISM}=[name={name},password={each}]" for name, each in (("admin", admin_password), (USER, password))
    ]
    scram = [part for user in users for part in ("--add-scram", user)]
    format_storage(folder, settings, CLUSTER, *scram)
    process = start_broker(folder, settings)
    (folder / "password").write_text(password)
    (folder / "password").chmod(0o600)
    broker = SecuredBroker(process, f"{LOOPBACK}:{port}", folder / "password", folder / "ca.pem")
    await_open(process, folder, [(LOOPBACK, port)])
    _grant(broker, admin_password, topics)
    return broker


def _create_certificate(folder: Path, keytool: Path, password: str) -> None:
    names = ("-dname", "CN=127.0.0.1", "-ext", "SAN=ip:127.0.0.1,dns:localhost")
    store = ("-keystore", "server.p12", "-storetype", "PKCS12", "-storepass", password, "-alias", "server")
    made = [str(keytool), "-genkeypair", "-keyalg", "RSA", "-keysize", "2048", "-validity", "365", *names, *store]
    subprocess.run(made, cwd=folder, check=True, capture_output=True, timeout=60)
    exported = [str(keytool), "-exportcert", "-rfc", "-file", "ca.pem", *store]
    subprocess.run(exported, cwd=folder, check=True, capture_output=True, timeout=60)


def _grant(broker: SecuredBroker, admin_password: str, topics: Sequence[str]) -> None:
    client = AdminClient(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": "admin",
            "sasl.password": admin_password,
            "ssl.ca.location": str(broker.ca_file),
        }
    )
    rules = [
        AclBinding(kind, name, pattern, f"User:{USER}", "*", AclOperation[operation], AclPermissionType.ALLOW)
        for kind, pattern, operation in RIGHTS
        for name in (topics if kind is ResourceType.TOPIC else ["headrace-"])
    ]
    for future in client.create_acls(rules).values():
        future.result(30)


def main(arguments: Sequence[str]) -> int:
    """Run a broker until Ctrl-C."""
    folder, *topics = arguments
    broker = start_secured_broker(Path(folder).resolve(), load_settings(), topics)
    print(*(f"export {name}={value!r}" for name, value in broker.settings().items()), sep="\n", flush=True)
    try:
        return broker.process.wait()
    except KeyboardInterrupt:
        broker.process.terminate()
        return broker.process.wait(30)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
