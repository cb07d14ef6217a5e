"""`headrace audit --deep` as a command: equal while the stream runs; a row changed under a right checksum is named."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recovery_site import Site

from include.ground.durable_files import name_by_checksum
from include.ground.paths import silver_path

pytestmark = pytest.mark.extended


def change_first_row(table: Path) -> str:
    """Change a measure of the table's first row, its file's checksum and its commit; return the row's event."""
    commit = next(path for path in sorted((table / "_delta_log").glob("*.json")) if '"add"' in path.read_text())
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    add = next(line["add"] for line in lines if "add" in line)
    old = table / add["path"]
    rows = pq.read_table(old, partitioning=None)
    litres = rows["litres"].to_pylist()
    litres[0] += 1
    place = rows.column_names.index("litres")
    changed = rows.set_column(place, rows.schema.field("litres"), pa.array(litres, rows.schema.field("litres").type))
    written = old.with_name("part-0.parquet")
    pq.write_table(changed, written)
    old.unlink()
    new = name_by_checksum(written)
    add |= {"path": str(new.relative_to(table)), "size": new.stat().st_size}
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(rows["event_id"][0])


def test_deep_audit_names_a_row_that_was_written_wrongly(site: Site) -> None:
    driver = site.start_driver()
    site.send(200)
    site.wait_published(driver)
    site.send(200)
    equal = site.command("audit", "--deep", "--dataset", site.dataset)
    assert equal.returncode == 0, equal.stdout + equal.stderr
    assert "of bronze" in equal.stdout
    site.wait_published(driver)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0

    release = site.publication()["release"]
    event = change_first_row(silver_path(site.settings, site.dataset, release))
    wrong = site.command("audit", "--deep", "--json", "--dataset", site.dataset)
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    (found,) = json.loads(wrong.stdout)["datasets"]
    deep = [each for each in found["deep"]["findings"] if each["table"].startswith("silver.")]
    assert [(each["kind"], each["rows"], each["partition"] is None) for each in deep] == [("different", 1, False)]
    assert deep[0]["detail"].startswith(f"event_id={event}: litres is ")
    assert found["deep"]["repair"].startswith(f"headrace replay run --dataset {site.dataset} --batches ")
    assert not list((site.settings.state / "spill").glob("*/recomputed"))
