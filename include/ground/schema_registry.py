"""A schema registry, by Confluent's client: schemas by id, the latest of a subject, registration.

An id that the registry does not know is an answer; anything else that is not a schema is an error. A page of another
server must never be taken for the answer that an id is unknown: its records would be rejected.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from include.ground.errors import Terminal, Transient
from include.ground.protobuf_compiler import compiled
from include.ground.settings import Settings, read_password

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

T = TypeVar("T")
SUBJECT_UNKNOWN, VERSION_UNKNOWN, SCHEMA_UNKNOWN, LEVEL_UNKNOWN = 40401, 40402, 40403, 40408
UNKNOWN = frozenset({SUBJECT_UNKNOWN, VERSION_UNKNOWN, SCHEMA_UNKNOWN, LEVEL_UNKNOWN})
REFUSED_LOGIN = frozenset({401, 403})
BUSY = frozenset({408, 429})
SECONDS = 10.0
AVRO, JSON, PROTOBUF, UNKNOWN_TYPE = "AVRO", "JSON", "PROTOBUF", "UNKNOWN"
"""Types of schemas; UNKNOWN is of an id for which the registry had none."""


class RegistryNotSet(Terminal):
    """Something needs the registry, and no setting names one."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why}, and no schema registry is set; nothing was lost",
            "HEADRACE_SCHEMA_REGISTRY_URL=http://host:port, then the same command",
        )


class RegistryUnreachable(Transient):
    """The registry at `url` does not answer, or not now."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(
            f"the schema registry at {url} does not answer: {why}; records wait in bronze, nothing is lost",
            "start it, or correct HEADRACE_SCHEMA_REGISTRY_URL",
        )
        self.url = url


class RegistryRefused(Terminal):
    """The registry answered a request with an error; `status` is of HTTP."""

    def __init__(self, url: str, status: int, why: str, remedy: str = "") -> None:
        login = "HEADRACE_SCHEMA_REGISTRY_USER and _PASSWORD_FILE"
        path = "HEADRACE_SCHEMA_REGISTRY_URL, with the path of Confluent's API (Apicurio: /apis/ccompat/v7)"
        super().__init__(
            f"the schema registry refused {url}: {status} {why[:300]}; nothing is lost",
            remedy or f"correct {login if status in REFUSED_LOGIN else path}",
        )
        self.url, self.status = url, status


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema by its id; `type` is AVRO, JSON or PROTOBUF; `version` is of its subject, 0 where none was named.

    `text`: as it is registered; of Protobuf what `protobuf_compiler.py` makes of it and of what it imports. Of
    Avro that refers to others an object: they are its `references`, the schema itself its `schema`.
    """

    id: int
    type: str
    text: str
    version: int = 0


@dataclass(frozen=True)
class SchemaRegistry:
    """The registry at `url`; `user` is empty without a log-in, `ca_file` without certificates of its own."""

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""

    def schema(self, number: int) -> RegisteredSchema | None:
        """Return the schema with this id, None when there is none. Raises RegistryUnreachable, RegistryRefused."""
        found = self._asked(lambda client: client.get_schema(number))
        return None if found is None else self._whole(_schema(number, found), found)

    def latest(self, subject: str) -> RegisteredSchema | None:
        """Return the last schema of a subject, None when there is none."""
        found = self._asked(lambda client: client.get_latest_version(subject))
        return (
            None
            if found is None
            else self._whole(_schema(found.schema_id or 0, found.schema, found.version), found.schema)
        )

    def _whole(self, schema: RegisteredSchema, found: Any) -> RegisteredSchema:
        """Return a schema with those that it imports or refers to. Raises RegistryRefused for a missing one."""
        imported = dict[str, str]()
        self._import(found, imported)
        if schema.type == AVRO and found.references:
            return replace(schema, text=f'{{"references": [{", ".join(imported.values())}], "schema": {schema.text}}}')
        return replace(schema, text=compiled(schema.text, imported)) if schema.type == PROTOBUF else schema

    def _import(self, found: Any, imported: dict[str, str]) -> None:
        for each in found.references or ():
            if each.name not in imported:
                subject, version = each.subject, each.version
                other = self._asked(lambda client: client.get_version(subject, version))  # noqa: B023
                if other is None:
                    place, why = f"subjects/{subject}/versions/{version}", f"a schema refers to it as {each.name}"
                    remedy = f"register it as version {version} of subject {subject}; the stream continues by itself"
                    raise RegistryRefused(f"{self.url}/{place}", 404, why, remedy)
                self._import(other.schema, imported)
                imported[each.name] = str(other.schema.schema_str)

    def compatibility(self, subject: str) -> str:
        """Return the level that a new schema of the subject must keep: its own, else the registry's."""
        # The client's own method does not ask for the default: Apicurio answers it with NONE.
        path, query = f"config/{quote(subject, safe='')}", {"defaultToGlobal": "true"}
        own = self._asked(lambda client: str(client._rest_client.get(path, query)["compatibilityLevel"]))
        return own or self._asked(lambda client: client.get_compatibility()) or "NONE"

    def set_compatibility(self, level: str) -> None:
        """Set the level of subjects without one of their own."""
        self._asked(lambda client: client.set_compatibility(level=level))

    def register(self, subject: str, text: str, kind: str = AVRO) -> int:
        """Register a schema, once, and return its id. Raises RegistryRefused when it breaks compatibility."""
        from confluent_kafka.schema_registry import Schema

        found = self._asked(lambda client: client.register_schema(subject, Schema(text, kind)))
        if found is None:
            raise RegistryRefused(f"{self.url}/subjects/{subject}", 404, "it registers no schema")
        return found

    def _asked(self, ask: Callable[[SchemaRegistryClient], T]) -> T | None:
        """Return an answer; None for the answer that a schema, subject or level is unknown."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError
        from httpx2 import TransportError

        try:
            return ask(self._client)
        except SchemaRegistryError as error:
            status, why = error.http_status_code, str(error.error_message)
            if status >= 500 or status in BUSY:
                raise RegistryUnreachable(self.url, f"{status} {why[:200]}") from error
            if status == 404 and error.error_code in UNKNOWN:
                return None
            raise RegistryRefused(self.url, status, why) from error
        except (TransportError, OSError) as error:
            raise RegistryUnreachable(self.url, str(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryRefused(self.url, 200, f"the answer is not a schema registry's ({error})") from error

    @cached_property
    def _client(self) -> SchemaRegistryClient:
        # Its import takes a third of a second.
        from confluent_kafka.schema_registry import SchemaRegistryClient

        system = ssl.get_default_verify_paths()
        options: dict[str, Any] = {"url": self.url, "timeout": SECONDS, "max.retries": 0}
        options["ssl.ca.location"] = self.ca_file or system.cafile or system.capath
        if self.user:
            options["basic.auth.user.info"] = f"{self.user}:{self.password}"
        client = SchemaRegistryClient(options)
        # The log-in is not sent to the server that an answer redirects to.
        client._rest_client.session.follow_redirects = True
        return client


def schema_registry(settings: Settings) -> SchemaRegistry | None:
    """Return the registry that the settings name, None without one. Raises PasswordUnreadable."""
    if not settings.schema_registry_url:
        return None
    file, ca_file = settings.schema_registry_password_file, settings.schema_registry_ca_file
    password = read_password("HEADRACE_SCHEMA_REGISTRY_PASSWORD_FILE", file) if file else ""
    return SchemaRegistry(
        settings.schema_registry_url, settings.schema_registry_user, password, str(ca_file) if ca_file else ""
    )


def subject_of(topic: str) -> str:
    """Return the subject of a topic's values, as Confluent's producers name it by default."""
    return f"{topic}-value"


def _schema(number: int, found: Any, version: int | None = None) -> RegisteredSchema:
    if not found.schema_str:
        raise RegistryRefused(f"schema {number}", 200, "the answer has no schema: it is not a schema registry's")
    return RegisteredSchema(number, found.schema_type or AVRO, found.schema_str, version or 0)
