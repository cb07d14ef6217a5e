"""Several Kafka brokers on one machine, to test the loss and the rolling restart of brokers of a replicated cluster.

Each broker is also a controller (KRaft). Topics have three copies; a record acknowledged with acks=all is in at least
two of them. It prints the setting, and runs until Ctrl-C.

Usage: python -m infra.kafka.broker_cluster FOLDER [BROKERS]
"""

from __future__ import annotations

import signal
import string
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from include.ground.ports import LOOPBACK, free_ports
from include.ground.settings import Settings, load_settings
from infra.kafka.broker_process import PROPERTIES, await_open, format_storage, start_broker

HERE = Path(__file__).parent
BROKERS, COPIES = 3, 3
# Kafka's id of a cluster: 22 characters of base64.
CLUSTER = "aGVhZHJhY2VfY2x1c3Rlcg"
STOP_WITHIN = 60.0


@dataclass
class ClusterBroker:
    """One broker: its folder, its port, and its process while it runs."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None


@dataclass
class BrokerCluster:
    """The brokers of a cluster at one address."""

    settings: Settings
    address: str
    brokers: list[ClusterBroker] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(f"{self.address}:{broker.port}" for broker in self.brokers)

    def start(self, broker: ClusterBroker) -> None:
        """Start a broker; `await_ready` waits for it: the first ones need a majority of the controllers."""
        broker.process = start_broker(broker.folder, self.settings)

    def await_ready(self) -> None:
        """Wait until every broker that was started listens."""
        for broker in self.brokers:
            if broker.process is not None:
                await_open(broker.process, broker.folder, [(self.address, broker.port)])

    def kill(self, broker: ClusterBroker) -> None:
        """Kill a broker."""
        self._end(broker, signal.SIGKILL)

    def restart(self, broker: ClusterBroker) -> None:
        """Stop a broker as an operator does, then start it again and wait until it listens."""
        self._end(broker, signal.SIGTERM)
        self.start(broker)
        self.await_ready()

    def end(self) -> None:
        """Kill all brokers."""
        for broker in self.brokers:
            self.kill(broker)

    def _end(self, broker: ClusterBroker, number: signal.Signals) -> None:
        if broker.process is not None:
            broker.process.send_signal(number)
            broker.process.wait(STOP_WITHIN)
            broker.process = None


def start_broker_cluster(
    folder: Path, settings: Settings, brokers: int = BROKERS, address: str = LOOPBACK
) -> BrokerCluster:
    """Start brokers with their files in `folder`; return when all of them listen."""
    ports = free_ports(2 * brokers)
    voters = ",".join(f"{n}@{address}:{port}" for n, port in enumerate(ports[brokers:], start=1))
    copies = min(COPIES, brokers)
    common = {"address": address, "voters": voters, "copies": copies, "in_sync": max(1, copies - 1)}
    template = string.Template((HERE / "cluster.properties").read_text())
    cluster = BrokerCluster(settings, address)
    for number, (port, controller_port) in enumerate(zip(ports[:brokers], ports[brokers:], strict=True), start=1):
        own = folder / f"broker-{number}"
        own.mkdir(parents=True)
        text = template.substitute(common, number=number, port=port, controller_port=controller_port)
        (own / PROPERTIES).write_text(text)
        format_storage(own, settings, CLUSTER)
        cluster.brokers.append(ClusterBroker(own, port))
    try:
        for broker in cluster.brokers:
            cluster.start(broker)
        cluster.await_ready()
    except BaseException:
        cluster.end()
        raise
    return cluster


def main(arguments: Sequence[str]) -> int:
    """Run a cluster until Ctrl-C."""
    folder, *count = arguments
    cluster = start_broker_cluster(Path(folder).resolve(), load_settings(), int(count[0]) if count else BROKERS)
    print(f"export HEADRACE_KAFKA_BOOTSTRAP={cluster.bootstrap}", flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        for broker in cluster.brokers:
            if broker.process is not None:
                broker.process.terminate()
    finally:
        cluster.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
