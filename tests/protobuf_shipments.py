"""A schema in Protobuf with each kind of field, one that it imports, and drawn records."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

from include.declare.protobuf_schemas import ProtobufSchema, protobuf_schema
from include.declare.writer_schemas import framed
from include.ground.protobuf_compiler import compiled

PLACES = """
syntax = "proto3";
package geo;
message Place { string city = 1; optional int32 zip = 2; repeated double position = 3; }
"""
SHIPMENT = """
syntax = "proto3";
package shop.events;
import "geo/places.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";

message Envelope { string other = 1; }

message Shipment {
  enum State { UNKNOWN = 0; SENT = 1; LOST = 2; }
  message Item { bytes code = 2; string sku = 1; int64 grams = 3; repeated State states = 4; Item part = 5; }
  oneof paid_by { string card = 9; geo.Place cash_at = 10; bool free = 11; }
  google.protobuf.Timestamp sent_at = 2;
  string shipment_id = 1;
  repeated Item items = 3;
  map<string, Item> by_name = 4;
  map<int32, double> weights = 5;
  State state = 6;
  geo.Place to = 7;
  google.protobuf.Duration took = 8;
  google.protobuf.Int64Value note = 12;
  google.protobuf.Struct more = 13;
  uint64 big = 14;
  sint32 small = 15;
  fixed64 fixed = 16;
  sfixed32 below = 17;
  float single = 18;
  bytes raw = 19;
  repeated sint64 many = 20;
  uint32 count = 21;
  optional string maybe = 22;
  bool done = 23;
}
"""
OLD = """
syntax = "proto2";
message Old {
  enum Kind { ONE = 1; TWO = 2; }
  required string shipment_id = 1;
  optional Kind kind = 2 [default = TWO];
  repeated Kind kinds = 3;
  optional int64 amount = 4 [default = 7];
  repeated group Part = 5 { optional string sku = 1; repeated group Inner = 2 { optional int64 grams = 1; } }
  optional group Last = 536870911 { optional Kind kind = 1; }
  extensions 100 to 199;
}
"""
FILES = {"geo/places.proto": PLACES}


def drawn_old(rng: random.Random) -> Any:
    """Return a message with groups."""
    found = old_schema().message((0,))
    found.shipment_id = "old"
    for _ in range(rng.randrange(3)):
        part = found.part.add(sku=rng.choice(["", "é"]))
        for _ in range(rng.randrange(3)):
            part.inner.add(grams=rng.choice([0, -1, 2**40]))
    if rng.random() < 0.5:
        found.last.SetInParent()
        found.last.kind = rng.choice([1, 2])
    return found


@lru_cache(maxsize=1)
def old_schema() -> ProtobufSchema:
    """Return the schema with groups; the compiler is a process of its own."""
    return protobuf_schema(compiled(OLD, {}))


@lru_cache(maxsize=1)
def shipments() -> ProtobufSchema:
    """Return the schema as it is kept."""
    return protobuf_schema(compiled(SHIPMENT, FILES))


def encoded(number: int, message: Any, index: bytes = b"\x02\x02") -> bytes:
    """Return a message in the wire format, by default as the second one of its schema."""
    return framed(number, index + message.SerializeToString(deterministic=True))


def drawn(rng: random.Random, schema: ProtobufSchema) -> Any:
    """Return a shipment of which each field is there or not."""
    found = schema.message((1,))

    def some() -> bool:
        return rng.random() < 0.5

    def fill_item(item: Any, depth: int = 0) -> None:
        item.sku, item.grams = rng.choice(["", "é", 'say "hi"\n\\']), rng.choice([0, -(2**63), 2**63 - 1])
        item.code = rng.choice([b"", "Ω".encode(), b"ab"])
        item.states.extend(rng.choices([0, 1, 2, 7], k=rng.randrange(3)))
        if some() and depth < 2:
            fill_item(item.part, depth + 1)

    found.shipment_id = f"s{rng.randrange(10**6)}"
    for _ in range(rng.randrange(3)):
        fill_item(found.items.add())
    for name in rng.sample(["", "a", "b c"], rng.randrange(3)):
        fill_item(found.by_name[name])
    for key in rng.sample([-1, 0, 5], rng.randrange(3)):
        found.weights[key] = rng.choice([0.0, 0.1, float("nan"), float("inf"), 1e300])
    found.state = rng.choice([0, 1, 2, 9])
    if some():
        found.sent_at.seconds = rng.randrange(-(10**10), 10**10)
        found.sent_at.nanos = rng.choice([0, 5 * 10**8, 123456789])
    if some():
        found.to.city = "Bern"
        found.to.position.extend([1.5, -2.0][: rng.randrange(3)])
        if some():
            found.to.zip = 0
    if some():
        found.took.seconds, found.took.nanos = rng.choice([(0, -5 * 10**6), (3, 0), (-2, -1)])
    if some():
        found.note.value = rng.choice([0, 7])
    if some():
        found.more.update({"n": None, "x": [1, True, {"y": "z"}], "e": {}})
    chosen = rng.randrange(4)
    if chosen == 1:
        found.card = rng.choice(["", "visa"])
    elif chosen == 2:
        found.cash_at.city = "Zug"
    elif chosen == 3:
        found.free = False
    found.big, found.small = rng.choice([0, 2**64 - 1]), rng.choice([0, -1])
    found.fixed, found.below = 2**64 - 1, -(2**31)
    found.single, found.raw, found.count = 0.5, rng.randbytes(rng.randrange(3)), rng.choice([0, 2**32 - 1])
    found.many.extend(rng.choices([0, -1, 2**62], k=rng.randrange(3)))
    found.done = some()
    if some():
        found.maybe = ""
    return found
