"""A stream of Avro records with a real registry: killed and back, a new schema while it runs, rebuilds without it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import polars as pl
import pytest
from readings import Sent, readings
from recovery_site import Site
from secured_gateway import secured_gateway

from include.declare.writer_schemas import framed
from include.ground.schema_registry import RegistryRefused, SchemaRegistry
from include.producers.sending import produce
from infra.registry.apicurio import RunningRegistry, start_registry

pytestmark = pytest.mark.extended
AVRO = "    customProperties:\n      - {property: format, value: avro}\n"
UNKNOWN = framed(4_000_000_000, b"\x02a")
FIRST = {
    "type": "record",
    "name": "Reading",
    "namespace": "water",
    "fields": [
        {"name": "event_id", "type": "string"},
        {"name": "device", "type": "string"},
        {"name": "read_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "litres", "type": "int"},
        {"name": "comment", "type": ["null", "string"], "default": None},
    ],
}
SECOND = {
    **FIRST,
    "fields": [
        {"name": "place", "type": "string", "default": "cellar"},
        {"name": "litres", "type": "long"},
        {"name": "read_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "event_id", "type": "string"},
        {"name": "device", "type": "string"},
    ],
}
"""A field added with a default, one removed, `litres` wider, another order."""


@dataclass
class AvroSite:
    """A site whose records are in Avro, with a registry."""

    site: Site
    folder: Path
    running: RunningRegistry

    def start_again(self) -> None:
        """Start the registry again at the same address."""
        self.running = start_registry(self.folder, urlsplit(self.running.url).port or 0)

    def stop(self) -> None:
        """Kill the registry."""
        self.running.process.kill()
        self.running.process.wait(20)

    @property
    def registry(self) -> SchemaRegistry:
        return SchemaRegistry(self.running.url)

    def register(self, schema: dict[str, Any]) -> int:
        """Register a schema of the topic's records."""
        return self.registry.register(f"{self.site.dataset}-value", json.dumps(schema))

    def send(self, count: int, schema: dict[str, Any], number: int) -> None:
        """Send the next readings by a schema; instead of invalid ones, records whose schema nobody knows."""
        site, parsed = self.site, fastavro.parse_schema(json.loads(json.dumps(schema)))
        fresh = readings(site.sent_count, count)
        values = [_encoded(parsed, item.reading, number) if item.reading else UNKNOWN for item in fresh]
        rows = [(item.key.encode(), value, None) for item, value in zip(fresh, values, strict=True)]
        columns = {"key": pl.Binary, "value": pl.Binary, "fault": pl.String}
        produce(site.bootstrap, site.dataset, pl.DataFrame(rows, schema=columns, orient="row"))
        site.sent_count += count
        site.sent += [item if item.reading else replace(item, fate="unknown_schema") for item in fresh]


def _encoded(parsed: Any, reading: dict[str, Any], number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, reading)
    return framed(number, out.getvalue())


@pytest.fixture
def avro(site: Site, tmp_path: Path) -> Iterator[AvroSite]:
    contract = site.settings.datasets / site.dataset / "contract.yaml"
    text = contract.read_text("utf-8")
    assert text.count("    properties:\n") == 1
    contract.write_text(text.replace("    properties:\n", f"{AVRO}    properties:\n"), "utf-8")
    made = AvroSite(site, tmp_path / "registry", start_registry(tmp_path / "registry"))
    try:
        yield made
    finally:
        site.kill_all()
        made.stop()


def test_avro_survives_its_registry_and_is_rebuilt_without_it(avro: AvroSite) -> None:
    site, address = avro.site, avro.running.settings()
    first = avro.register(FIRST)
    driver = site.start_driver(**address)
    avro.send(200, FIRST, first)
    site.wait_published(driver)

    second = avro.register(SECOND)
    avro.stop()
    avro.send(200, SECOND, second)
    status = site.wait_state("halted", driver)
    assert f"the schema registry at {avro.running.url} does not answer" in status["reason"]
    assert "records wait in bronze" in status["reason"]
    avro.send(100, FIRST, first)
    avro.start_again()
    site.wait_published(driver)
    avro.send(100, SECOND, second)
    site.wait_published(driver)
    checked = site.command("contract", "check", "--dataset", site.dataset, **address)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"schema {second} (compatibility BACKWARD): the contract reads it" in checked.stdout

    avro.stop()
    everything = ("--dataset", site.dataset, "--batches", "0..1", "--source", "bronze", "--whole-history")
    replayed = site.command("replay", "run", *everything)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "equal" in replayed.stdout
    audited = site.command("audit", "--deep", "--dataset", site.dataset)
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert "balanced" in audited.stdout
    site.assert_nothing_lost()


def test_registry_behind_tls_and_a_password_is_used_by_every_command(avro: AvroSite, tmp_path: Path) -> None:
    site = avro.site
    with secured_gateway(avro.running.url, tmp_path / "gateway") as gateway:
        address = gateway.settings()
        number = avro.register(FIRST)
        avro.send(100, FIRST, number)
        password = Path(address["HEADRACE_SCHEMA_REGISTRY_PASSWORD_FILE"])
        right = password.read_text()
        password.write_text("wrong\n")
        driver = site.start_driver(**address)
        status = site.wait_state("halted", driver)
        assert "401" in status["reason"]
        driver.kill()
        password.write_text(right)
        driver = site.start_driver(**address)
        site.wait_published(driver)
        checked = site.command("contract", "check", "--dataset", site.dataset, **address)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert f"schema {number} (compatibility BACKWARD): the contract reads it" in checked.stdout
    site.assert_nothing_lost()


def test_file_of_a_user_is_sent_in_avro_and_shown_as_json(avro: AvroSite, tmp_path: Path) -> None:
    site, address = avro.site, avro.running.settings()
    sent = [item for item in readings(0, 40) if item.fate in ("silver", "duplicate")]
    file = tmp_path / "my readings.jsonl"
    late = '{"event_id": "late", "device": "d1", "read_at": "2024-03-01T00:00:00Z", "litres": 5000}'
    file.write_text("".join(f"{item.value}\n" for item in sent) + late, "utf-8")
    words = ("produce", "--file", str(file), "--dataset", site.dataset, "--key", "device", "--quiet")
    refused = site.command(*words)
    assert refused.returncode == 2
    assert "HEADRACE_SCHEMA_REGISTRY_URL" in refused.stderr
    produced = site.command(*words, **address)
    assert produced.returncode == 0, produced.stdout + produced.stderr
    site.sent = [*sent, Sent("d1", late, "range", {})]
    driver = site.start_driver(**address)
    site.wait_published(driver)
    site.assert_nothing_lost()
    shown = site.command("rejected", "list", "--dataset", site.dataset)
    assert '"event_id":"late"' in shown.stdout.replace("\n", "")


def test_contract_that_the_latest_schema_breaks_is_not_valid(avro: AvroSite) -> None:
    site, address = avro.site, avro.running.settings()
    words = ("contract", "check", "--dataset", site.dataset)
    unset = site.command(*words)
    assert unset.returncode == 0, unset.stdout + unset.stderr
    assert "the schema registry was not checked: HEADRACE_SCHEMA_REGISTRY_URL is not set" in unset.stdout
    empty = site.command(*words, **address)
    assert f"subject {site.dataset}-value has no schema yet (compatibility BACKWARD)" in empty.stdout

    avro.register(FIRST)
    with pytest.raises(RegistryRefused, match="409"):
        avro.register({**FIRST, "fields": [{"name": "litres", "type": "string"}]})
    fields = [each | {"type": ["int", "string"]} if each["name"] == "litres" else each for each in FIRST["fields"]]  # type: ignore[union-attr]
    avro.register({**FIRST, "fields": fields})
    broken = site.command(*words, **address)
    assert broken.returncode == 1
    assert "litres is of type int, and field litres of the schema is union of integer, text" in broken.stdout
    avro.stop()
    down = site.command(*words, **address)
    assert (down.returncode, "the schema registry was not checked: " in down.stdout) == (0, True)
