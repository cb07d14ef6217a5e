"""`parcels` in Avro: the dataset's folder with another format, two schemas, and records."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

PARCELS = Path(__file__).parent / "recovery" / "datasets" / "parcels"


def optional(kind: Any) -> dict[str, Any]:
    return {"type": ["null", kind], "default": None}


def record(type_name: str, **fields: Any) -> dict[str, Any]:
    made = [{"name": name, **(kind if "default" in kind else {"type": kind})} for name, kind in fields.items()]
    return {"type": "record", "name": type_name, "fields": made}


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
TIME = {"type": "long", "logicalType": "timestamp-millis"}
ITEM = record(
    "Item",
    tags={"type": "array", "items": "string"},
    weight=optional({"type": "fixed", "name": "Grams", "size": 4}),
    price={"type": "fixed", "name": "Price", "size": 6, "logicalType": "decimal", "precision": 12, "scale": 2},
    sku={"type": "enum", "name": "Sku", "symbols": [f"s{n}" for n in range(9)]},
    packed_at=optional({"type": "long", "logicalType": "timestamp-micros"}),
)
TIGHT = {
    **record(
        "Parcel",
        items={"type": "array", "items": ITEM},
        history={"type": "map", "values": {"type": "array", "items": "Item"}},
        meta=record("Meta", at=TIME, id="string", checksum="bytes"),
        labels=optional({"type": "map", "values": "string"}),
        sender=record(
            "Sender",
            name=optional("bytes"),
            paid=MONEY,
            address=optional(record("Address", zip="string", city="string")),
        ),
        extra=optional(record("Extra", n={"type": "array", "items": ["null", "int"]})),
    ),
    "namespace": "shop.events",
}
"""In another order than the contract's, with fields that it does not have; named types are used again."""
LOOSE_VALUE = ["null", "boolean", "long", "double", "string"]
LOOSE_MAP = {"type": "map", "values": [*LOOSE_VALUE, {"type": "map", "values": LOOSE_VALUE}]}
LOOSE_ITEM = {"type": "map", "values": [*LOOSE_VALUE, {"type": "array", "items": LOOSE_VALUE}]}
LOOSE = record(
    "Loose",
    meta=[*LOOSE_VALUE, LOOSE_MAP],
    sender=LOOSE_MAP,
    items={"type": "array", "items": ["null", LOOSE_ITEM]},
    labels=optional({"type": "map", "values": LOOSE_VALUE}),
)
"""Maps for objects, and unions of several types: it describes records that break the contract."""


def parcels_folder(datasets: Path) -> Path:
    """Write the dataset's folder below `datasets`."""
    folder = datasets / "parcels"
    shutil.copytree(PARCELS, folder)
    contract = (folder / "contract.yaml").read_text("utf-8")
    form = "      - {property: format, value: avro}\n      - {property: maxDepth"
    (folder / "contract.yaml").write_text(contract.replace("      - {property: maxDepth", form, 1), "utf-8")
    return folder


def tight(found: dict[str, Any]) -> dict[str, Any]:
    """Return a parcel (`cases/parcels.py`) as a record of TIGHT."""
    copied = json.loads(json.dumps(found), parse_float=Decimal)
    meta, sender = copied["meta"], copied["sender"]
    meta |= {"at": datetime.fromisoformat(meta["at"]), "checksum": b"\xff\x00"}
    sender |= {"paid": Decimal(sender["paid"]), "name": sender["name"] and sender["name"].encode()}
    items = [{**each, "price": Decimal(each["price"]), "weight": b"\xff\xfe\xfd\xfc"} for each in copied["items"]]
    return {**copied, "items": items, "history": {"first": items, "none": []}}
