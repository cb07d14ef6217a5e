"""Records of the dataset `parcels`, and what plain Python makes of them."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from small_release import Record

PARCELS = Path(__file__).parents[1] / "recovery" / "datasets" / "parcels"
BEGIN = datetime(2026, 11, 1, 8, tzinfo=UTC)
BROKEN: dict[str, list[tuple[str, str]]] = {
    '{"meta":{"id":"x1","at":"2026-11-01T08:00:00Z"},"sender":{"paid":-1},"items":[{"sku":"a"}]}': [
        ("range", "sender.paid")
    ],
    '{"meta":{"id":"x2","at":"2026-11-01T08:00:00Z"},"sender":{},"items":[{"sku":"a"},{"sku":"b","price":-0.5}]}': [
        ("range", "items[1].price")
    ],
    '{"meta":{"id":"x3","at":"2026-11-01T08:00:00Z"},"sender":{"address":{}},"items":[]}': [
        ("required", "sender.address.city"),
        ("elements", "items"),
    ],
    '{"meta":{"id":"x","at":"2026-11-01T08:00:00Z"},"sender":{"address":{"city":"Testville"}},"items":[{"sku":"s"}]}': [
        ("no_test_city", "sender.address.city")
    ],
    '{"meta":{"at":"2026-11-01T08:00:00Z"},"sender":{},"items":[{"sku":"a"},null]}': [
        ("missing_id", "parcel_id"),
        ("required", "items[1]"),
    ],
    '{"meta":"x6","sender":{},"items":[{"sku":"a","packed_at":5}],"labels":{"k":1}}': [
        ("type", "parcel_id"),
        ("type", "sent_at"),
        ("type", "items[0].packed_at"),
        ("type", "labels[k]"),
    ],
    '{"meta":{"id":"x7","at":"2026-11-01T08:00:00Z"},"sender":{},"items":[{"sku":"a"}': [("malformed", "")],
    '{"meta":{"id":"x8","at":"2026-11-01T08:00:00Z"},"sender":{"name":"a","name":"b"},"items":[{"sku":"a"}]}': [
        ("duplicate_key", "")
    ],
    '{"meta":{"id":"x9","at":"2026-11-01T08:00:00Z"},"sender":{},"items":[{"sku":"a","price":1e400}]}': [
        ("out_of_range", "items[0].price")
    ],
    '{"meta":{"id":"x10","at":"2026-11-01T08:00:00Z"},"sender":{"name":"\\ud800"},"items":[{"sku":"a"}]}': [
        ("bad_utf8", "")
    ],
}
"""Records that break the contract, and the reasons."""


def parcel(number: int, **changed: Any) -> dict[str, Any]:
    """Return a parcel as its sender writes it; fields come in the contract's order."""
    rng = random.Random(number)
    at = (BEGIN + timedelta(hours=7 * number)).isoformat().replace("+00:00", "Z")
    address = {"city": rng.choice(["Bern", "Zug"]), "zip": f"{rng.randrange(1000, 9999)}"}
    sender = {"name": rng.choice(["Ann", "Bo", None]), "paid": rng.randrange(2000) / 100, "address": address}
    if number % 5 == 0:
        del sender["address"]
    items = [{"sku": f"s{n}", "price": rng.randrange(900) / 100, "tags": ["é"] * n} for n in range(1 + number % 3)]
    labels = {f"l{n}": f"v{n}" for n in range(number % 3)}
    found = {"meta": {"id": f"p{number}", "at": at}, "sender": sender, "items": items, "labels": labels}
    return found | ({"extra": {"n": [number, None]}} if number % 2 else {}) | changed


def sent(found: dict[str, Any], *, plain: bool = True, partition: int = 0) -> Record:
    """Return a parcel as a record; `plain`: as most producers write it."""
    text = json.dumps(found, ensure_ascii=not plain, separators=(",", ":") if plain else (" , ", " : "))
    return Record(text.encode(), partition=partition)


def silver_row(found: dict[str, Any]) -> dict[str, Any]:
    """Return the row of silver that an accepted parcel is, by plain Python; decimals as texts, `extra` parsed."""
    sender, address = found["sender"], found["sender"].get("address")
    return {
        "parcel_id": found["meta"]["id"],
        "sent_at": datetime.fromisoformat(found["meta"]["at"]),
        "sender": {
            "name": sender["name"],
            "paid": f"{sender['paid']:.2f}",
            "address": address and {"city": address["city"], "zip_code": address["zip"]},
        },
        "items": [
            {"sku": each["sku"], "price": f"{each['price']:.2f}", "packed_at": None, "tags": each["tags"]}
            for each in found["items"]
        ],
        "labels": found["labels"],
        "extra": found.get("extra"),
        "city": address["city"] if address else "?",
    }
