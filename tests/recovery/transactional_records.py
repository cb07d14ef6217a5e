"""An aborted and a committed transaction in a topic, for readers that return committed records only."""

from __future__ import annotations

from confluent_kafka import Producer


def send_transactions(address: dict[str, str], topic: str) -> None:
    """Send three records that are aborted, then two that are committed, to partition 0; each has its marker."""
    producer = Producer({**address, "transactional.id": topic})
    producer.init_transactions(30)
    for end, count in ((producer.abort_transaction, 3), (producer.commit_transaction, 2)):
        producer.begin_transaction()
        for _ in range(count):
            producer.produce(topic, value=b"in a transaction", partition=0)
        producer.flush(10)
        end(30)
