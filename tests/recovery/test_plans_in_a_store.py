"""Tables that lie in an object store, written by Spark: plans, repairs and a lost disk.

What other tests show of tables on a disk is asked here of the same tables in a store.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import test_checkpoints as checkpoints
import test_rejected_records as rejected
import test_retention as retention
import test_slices_while_streaming as slices
from readings import readings
from recovery_site import Site
from test_tables_in_a_store import end_with_nothing_lost

from include.ground.paths import checkpoint_path, local_warehouse
from spark_jobs.tables.failpoints import Step

pytestmark = [pytest.mark.extended, pytest.mark.timeout(1800)]
REFUSED = 2


def done(site: Site, *words: str) -> str:
    """Run `headrace …`, which must succeed; return what it printed."""
    ended = site.command(*words)
    assert ended.returncode == 0, (words, ended.stdout[-3000:], ended.stderr[-3000:])
    return ended.stdout


def counted(site: Site, query: str) -> int:
    """Return the number that a query of one row and column gives."""
    ((number,),) = (row.values() for row in json.loads(done(site, "query", query, "--format", "json")))
    return int(number)


def test_slices_are_patched_and_reverted(stored: Site) -> None:
    slices.test_slices_are_patched_and_reverted_while_streaming(stored)


def test_a_patch_is_rolled_back(stored: Site) -> None:
    slices.test_patch_without_a_stream_is_rolled_back(stored)


def test_rejected_records_are_reinstated(stored: Site) -> None:
    rejected.test_rejected_records_are_reinstated_once(stored)


def test_records_that_kafka_has_expired_stay_on_account(stored: Site) -> None:
    retention.test_expired_records_are_skipped_only_on_request_and_stay_on_account(stored)


def test_a_damaged_checkpoint_is_repaired(stored: Site) -> None:
    checkpoints.test_damaged_checkpoint_is_refused_and_repaired(stored)


def test_files_are_loaded_and_taken_out_again(stored: Site, tmp_path: Path) -> None:
    stored.send(200)
    stored.wait_published(driver := stored.start_driver())
    of_topic, of_file = list(stored.sent), readings(100_000, 300)
    file = tmp_path / "history.jsonl"
    file.write_text("".join(f"{item.value}\n" for item in of_file), "utf-8")
    plan = json.loads(done(stored, "load", "run", stored.dataset, "--files", str(file), "--yes", "--json"))
    assert plan["stage"] == "applied"
    stored.sent = of_topic + of_file
    loaded = f"select count(*) from bronze.{stored.dataset}"
    assert counted(stored, loaded) == len(stored.sent)
    done(stored, "audit", "--dataset", stored.dataset)
    stored.sent = of_topic
    done(stored, "plan", "rollback", plan["id"])
    end_with_nothing_lost(stored, driver)
    done(stored, "audit", "--dataset", stored.dataset, "--deep")


def test_a_disk_that_is_lost_is_restored_and_the_stream_continues_once(stored: Site) -> None:
    stored.send(200)
    stored.wait_published(driver := stored.start_driver())
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    stored.send(200)
    assert stored.start_driver(f"kill:{Step.GOLD_COMMITTED}").wait() == -signal.SIGKILL
    stored.drivers[-1].kill()
    stored.send(100)
    settings, name = stored.settings, stored.dataset
    for path in (local_warehouse(settings) / name, checkpoint_path(settings, name), settings.state / "releases" / name):
        shutil.rmtree(path)
    for path in (*settings.state.glob("ledger.sqlite*"), *settings.state.glob(f"leases/{name}*")):
        path.unlink()
    refused = stored.start_driver()
    assert refused.wait() == REFUSED
    assert f"headrace restore {name}" in refused.log_text()
    done(stored, "restore", name, "--yes")
    end_with_nothing_lost(stored, stored.start_driver())
    done(stored, "audit", "--dataset", name, "--deep")
