"""The registry's client: an unknown id is an answer, and nothing else is taken for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from registry_stand_in import StandIn, registry_stand_in
from secured_gateway import PASSWORD, USER, create_certificate, secured_gateway
from served_in_thread import served_in_thread

from include.ground.ports import free_ports
from include.ground.schema_registry import (
    RegisteredSchema,
    RegistryRefused,
    RegistryUnreachable,
    SchemaRegistry,
    schema_registry,
)
from include.ground.settings import Settings, list_settings

TEXT = '{"type": "record", "name": "r", "fields": []}'


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with registry_stand_in() as registry:
        yield registry


def test_schema_is_found_by_id_and_as_the_latest_of_its_subject(stand_in: StandIn) -> None:
    registry = SchemaRegistry(stand_in.address)
    assert registry.register("a/b-value", TEXT) == 1
    assert registry.schema(1) == RegisteredSchema(1, "AVRO", TEXT)
    assert registry.latest("a/b-value") == RegisteredSchema(1, "AVRO", TEXT, 1)
    assert stand_in.requests[0] == "POST /subjects/a%2Fb-value/versions"


def test_schema_comes_with_those_that_it_refers_to_at_any_depth(stand_in: StandIn) -> None:
    for number, subject in enumerate(("leaf", "branch", "tree"), 1):
        stand_in.add(subject, f'{{"name": "{subject}"}}', number)
    stand_in.references[2] = [{"name": "a.Leaf", "subject": "leaf", "version": 1}]
    stand_in.references[3] = [{"name": "a.Branch", "subject": "branch", "version": 1}]
    found = SchemaRegistry(stand_in.address).schema(3)
    assert found is not None
    whole = {"references": [{"name": "leaf"}, {"name": "branch"}], "schema": {"name": "tree"}}
    assert (found.type, json.loads(found.text)) == ("AVRO", whole)


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_missing_reference_is_named_with_what_to_register(stand_in: StandIn, kind: str) -> None:
    stand_in.add("tree", TEXT, 3, kind)
    stand_in.references[3] = [{"name": "a.Branch", "subject": "branch", "version": 2}]
    with pytest.raises(
        RegistryRefused, match=r"subjects/branch/versions/2: 404 a schema refers to it as a.Branch"
    ) as it:
        SchemaRegistry(stand_in.address).schema(3)
    assert it.value.remedy == "register it as version 2 of subject branch; the stream continues by itself"


@pytest.mark.parametrize("knows_default", [True, False])
def test_level_of_a_subject_without_one_is_the_registry_s(stand_in: StandIn, knows_default: bool) -> None:
    stand_in.knows_default = knows_default
    assert SchemaRegistry(stand_in.address).compatibility("a/b-value") == "BACKWARD"
    assert stand_in.requests[0] == "GET /config/a%2Fb-value"


def test_what_the_registry_does_not_know_is_none(stand_in: StandIn) -> None:
    registry = SchemaRegistry(stand_in.address)
    assert (registry.schema(7), registry.latest("no-value")) == (None, None)


@pytest.mark.parametrize(
    ("status", "content", "error"),
    [
        (404, b"<html>Not Found</html>", RegistryRefused),
        (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}', RegistryRefused),
        (200, b"<html>Welcome</html>", RegistryRefused),
        (401, b'{"error_code": 401, "message": "Unauthorized"}', RegistryRefused),
        (409, b'{"error_code": 409, "message": "incompatible"}', RegistryRefused),
        (503, b"starting", RegistryUnreachable),
        (429, b"", RegistryUnreachable),
    ],
)
def test_any_other_answer_is_an_error(
    stand_in: StandIn, status: int, content: bytes, error: type[RegistryRefused | RegistryUnreachable]
) -> None:
    stand_in.answer = (status, content)
    with pytest.raises(error, match=str(status)):
        SchemaRegistry(stand_in.address).schema(7)


def test_registry_that_is_down_is_unreachable() -> None:
    (port,) = free_ports(1)
    with pytest.raises(RegistryUnreachable, match=f"127.0.0.1:{port}"):
        SchemaRegistry(f"http://127.0.0.1:{port}").schema(1)


def test_settings_name_registry_user_and_password_file(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    settings = Settings(
        state=tmp_path / "state",
        schema_registry_url=f"{stand_in.address}/apis/ccompat/v7/",
        schema_registry_user="reader",
        schema_registry_password_file=file,
    )
    registry = schema_registry(settings)
    assert registry is not None
    with pytest.raises(RegistryRefused):
        registry.schema(1)
    assert (stand_in.requests, stand_in.logins) == (["GET /apis/ccompat/v7/schemas/ids/1"], ["reader:hunter2"])
    assert "hunter2" not in repr(registry)
    assert schema_registry(Settings(state=tmp_path / "state")) is None


def test_settings_of_the_registry_are_listed() -> None:
    names = {info.name.removeprefix("HEADRACE_SCHEMA_REGISTRY_") for info in list_settings({})}
    assert {"URL", "USER", "PASSWORD_FILE", "CA_FILE"} <= names


def test_address_with_a_password_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="schema_registry_url"):
        Settings(state=tmp_path, schema_registry_url="http://user:hunter2@127.0.0.1:8081")


def test_log_in_is_not_sent_where_an_answer_redirects_to(stand_in: StandIn) -> None:
    class Redirecting(BaseHTTPRequestHandler):
        logins: ClassVar[list[str | None]] = []

        def do_GET(self) -> None:
            self.logins.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", stand_in.address + self.path)
            self.end_headers()

    stand_in.add("a-value", TEXT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Redirecting)
    with served_in_thread(server):
        registry = SchemaRegistry(f"http://127.0.0.1:{server.server_port}", "ann", "secret")
        assert registry.schema(1) == RegisteredSchema(1, "AVRO", TEXT)
    assert [bool(login) for login in Redirecting.logins] == [True]
    assert stand_in.logins == [""]


def test_registry_behind_tls_and_a_password_is_read_with_both(stand_in: StandIn, tmp_path: Path) -> None:
    number = stand_in.add("a-value", TEXT)
    with secured_gateway(f"{stand_in.address}/", tmp_path / "mine") as gateway:
        url, ca = gateway.url, str(gateway.ca_file)
        found = SchemaRegistry(url, USER, PASSWORD, ca).schema(number)
        assert found is not None
        assert found.text == TEXT
        with pytest.raises(RegistryUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            SchemaRegistry(url, USER, PASSWORD).schema(number)
        other, _ = create_certificate(tmp_path / "other")
        with pytest.raises(RegistryUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            SchemaRegistry(url, USER, PASSWORD, str(other)).schema(number)
        with pytest.raises(RegistryRefused, match="401") as refused:
            SchemaRegistry(url, USER, "wrong", ca).schema(number)
        assert "_PASSWORD_FILE" in refused.value.remedy
        with pytest.raises(RegistryUnreachable):
            SchemaRegistry(url.replace("https", "http"), USER, PASSWORD).schema(number)
