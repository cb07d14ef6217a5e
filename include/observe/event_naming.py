"""Names in OpenLineage: namespaces of datasets and jobs, and run ids that follow from what was recorded.

A table keeps its name through releases; where its files are now is a symlink of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from openlineage.client.naming.dataset import Kafka
from openlineage.client.uuid import generate_static_uuid

from include.declare.lineage_graph import REFERENCE
from include.ground.settings import Settings

TOPIC = "topic "


@dataclass(frozen=True)
class EventNaming:
    """`jobs`: the namespace of jobs; `tables`: that of tables, a file URI; `kafka`: `host:port` of the broker."""

    jobs: str
    tables: str
    kafka: str

    def dataset(self, name: str) -> tuple[str, str]:
        """Return namespace and name of a topic or table, which is named as in a LineageEdge."""
        if name.startswith(TOPIC):
            host, _, port = self.kafka.rpartition(":")
            topic = Kafka(host, port, name.removeprefix(TOPIC))
            return topic.get_namespace(), topic.get_name()
        if name.startswith(REFERENCE):
            return self.tables, f"reference.{name.removeprefix(REFERENCE)}"
        return self.tables, name

    def run_id(self, instant: datetime, *parts: object) -> str:
        """Return the id of a run that `parts` identify: the same for an event that is sent again."""
        return str(generate_static_uuid(instant, "/".join(map(str, (self.jobs, self.tables, *parts))).encode()))


def event_naming(settings: Settings, kafka: str) -> EventNaming:
    """Return the names that events of a state folder use; `kafka`: the addresses of its brokers."""
    return EventNaming(settings.openlineage_namespace, settings.state.as_uri(), kafka.split(",")[0])
