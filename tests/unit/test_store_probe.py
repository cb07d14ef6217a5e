"""Whether a store is found out that does not keep conditional puts apart: a real server, alone and behind a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stored_site import create_bucket, endpoint_of, proxy_without, running_store, stored_settings

from include.ground.object_store import find_store
from include.ground.settings import Settings
from include.observe.doctor import Verdict, check_store


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with running_store() as process:
        create_bucket(endpoint_of(process), "probed")
        yield endpoint_of(process)


def test_doctor_accepts_a_store_with_conditional_puts(endpoint: str, tmp_path: Path) -> None:
    settings = stored_settings(tmp_path, endpoint, "probed")
    (result,) = check_store(settings)
    assert (result.verdict, result.remedy) == (Verdict.OK, "")
    store = find_store(settings)
    assert store is not None
    assert list(store.list("")) == []


@pytest.mark.parametrize("header", ["if-none-match", "if-match"])
def test_doctor_refuses_a_store_that_ignores_a_condition(header: str, endpoint: str, tmp_path: Path) -> None:
    with proxy_without(endpoint, header) as address:
        (result,) = check_store(stored_settings(tmp_path, address, "probed"))
    assert result.verdict is Verdict.FAIL
    assert header.replace("none", "None").replace("match", "Match").replace("if-", "If-") in result.found


def test_doctor_calls_a_store_unsafe_that_does_not_delete_either(endpoint: str, tmp_path: Path) -> None:
    with proxy_without(endpoint, "if-none-match", deletes=False) as address:
        (result,) = check_store(stored_settings(tmp_path, address, "probed"))
    assert "ignores If-None-Match" in result.found


def test_doctor_names_a_bucket_that_is_missing(endpoint: str, tmp_path: Path) -> None:
    (result,) = check_store(stored_settings(tmp_path, endpoint, "nowhere"))
    assert result.verdict is Verdict.FAIL
    assert "NoSuchBucket" in result.found


def test_doctor_names_a_store_out_of_reach(tmp_path: Path) -> None:
    (result,) = check_store(stored_settings(tmp_path, "http://127.0.0.1:9", "probed"))
    assert result.verdict is Verdict.FAIL
    assert "127.0.0.1:9" in result.found


def test_doctor_checks_no_store_without_the_setting(tmp_path: Path) -> None:
    assert check_store(Settings(state=tmp_path)) == []
