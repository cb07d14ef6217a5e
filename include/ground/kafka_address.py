"""The address of a Kafka cluster, and how clients log in there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LOGIN = 'org.apache.kafka.common.security.{module} required username="{user}" password="{password}";'
MODULES = {"PLAIN": "plain.PlainLoginModule"}
SCRAM_MODULE = "scram.ScramLoginModule"


@dataclass(frozen=True)
class KafkaSecurity:
    """How clients log in: `protocol` of Kafka; `mechanism`, `user` and `password` for SASL; `ca_file` (PEM) for TLS."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    user: str = ""
    password: str = ""
    ca_file: str = ""

    def __repr__(self) -> str:
        return f"KafkaSecurity({self.protocol}, {self.mechanism}, {self.user})"

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL")


class KafkaAddress(str):
    """`host:port[,host:port]` with the security of the cluster; wherever only a text is needed, it is one."""

    security: KafkaSecurity

    __slots__ = ("security",)

    def __new__(cls, servers: str, security: KafkaSecurity) -> KafkaAddress:
        address = super().__new__(cls, servers)
        address.security = security
        return address


def security_of(bootstrap: str) -> KafkaSecurity:
    """Return how clients log in at an address; a plain text is one without security."""
    return bootstrap.security if isinstance(bootstrap, KafkaAddress) else KafkaSecurity()


def client_options(bootstrap: str) -> dict[str, Any]:
    """Return librdkafka's options for an address."""
    security, options = security_of(bootstrap), dict[str, Any]({"bootstrap.servers": str(bootstrap)})
    if security.protocol != "PLAINTEXT":
        options["security.protocol"] = security.protocol
    if security.uses_sasl:
        login = {"sasl.mechanism": security.mechanism, "sasl.username": security.user}
        options |= {**login, "sasl.password": security.password}
    if security.ca_file:
        options["ssl.ca.location"] = security.ca_file
    return options


def source_options(bootstrap: str) -> dict[str, str]:
    """Return the options of Spark's Kafka source for an address."""
    security, options = security_of(bootstrap), {"kafka.bootstrap.servers": str(bootstrap)}
    if security.protocol != "PLAINTEXT":
        options["kafka.security.protocol"] = security.protocol
    if security.uses_sasl:
        module = MODULES.get(security.mechanism, SCRAM_MODULE)
        login = LOGIN.format(module=module, user=_quoted(security.user), password=_quoted(security.password))
        options |= {"kafka.sasl.mechanism": security.mechanism, "kafka.sasl.jaas.config": login}
    if security.ca_file:
        options |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": security.ca_file}
    return options


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
