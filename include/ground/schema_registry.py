"""A schema registry, by Confluent's REST API: schemas by id, the latest of a subject, registration.

An id that the registry does not know is an answer; anything else that is not a schema is an error. A page of another
server must never be taken for the answer that an id is unknown: its records would be rejected.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from include.ground.errors import Terminal, Transient
from include.ground.settings import Settings, read_password

CONTENT = "application/vnd.schemaregistry.v1+json"
SUBJECT_UNKNOWN, VERSION_UNKNOWN, SCHEMA_UNKNOWN, LEVEL_UNKNOWN = 40401, 40402, 40403, 40408
UNKNOWN = frozenset({SUBJECT_UNKNOWN, VERSION_UNKNOWN, SCHEMA_UNKNOWN, LEVEL_UNKNOWN})
REFUSED_LOGIN = frozenset({401, 403})
BUSY = frozenset({408, 429})
SECONDS = 10.0
AVRO, JSON, UNKNOWN_TYPE = "AVRO", "JSON", "UNKNOWN"
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

    def __init__(self, url: str, status: int, why: str) -> None:
        login = "HEADRACE_SCHEMA_REGISTRY_USER and _PASSWORD_FILE"
        path = "HEADRACE_SCHEMA_REGISTRY_URL, with the path of Confluent's API (Apicurio: /apis/ccompat/v7)"
        super().__init__(
            f"the schema registry refused {url}: {status} {why[:300]}; nothing is lost",
            f"correct {login if status in REFUSED_LOGIN else path}",
        )
        self.url, self.status = url, status


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema by its id; `type` is AVRO, JSON or PROTOBUF; `version` is of its subject, 0 where none was named."""

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
        found = self._call("GET", f"/schemas/ids/{number}")
        return None if found is None else _schema(number, found)

    def latest(self, subject: str) -> RegisteredSchema | None:
        """Return the last schema of a subject, None when there is none."""
        found = self._call("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
        return None if found is None else _schema(int(found["id"]), found)

    def compatibility(self, subject: str) -> str:
        """Return the level that a new schema of the subject must keep: its own, else the registry's."""
        own = f"/config/{quote(subject, safe='')}?defaultToGlobal=true"
        found = self._call("GET", own) or self._call("GET", "/config") or {}
        return str(found.get("compatibilityLevel", "NONE"))

    def set_compatibility(self, level: str) -> None:
        """Set the level of subjects without one of their own."""
        self._call("PUT", "/config", {"compatibility": level})

    def register(self, subject: str, text: str, kind: str = AVRO) -> int:
        """Register a schema, once, and return its id. Raises RegistryRefused when it breaks compatibility."""
        body = {"schema": text} if kind == AVRO else {"schema": text, "schemaType": kind}
        found = self._call("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        if found is None:
            raise RegistryRefused(f"{self.url}/subjects/{subject}", 404, "it registers no schema")
        return int(found["id"])

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the JSON of an answer; None for the answer that a schema, subject or level is unknown."""
        address = self.url.rstrip("/") + path
        headers = {"Accept": f"{CONTENT}, application/json", "Content-Type": CONTENT}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, data, headers, method=method)
        if self.user:
            # Not for the server that an answer may redirect to.
            request.add_unredirected_header("Authorization", self._login())
        try:
            with urllib.request.urlopen(request, timeout=SECONDS, context=self._tls()) as answer:
                return _json_object(address, answer.status, answer.read())
        except urllib.error.HTTPError as error:
            _refuse(address, error.code, error.read())
            return None
        except (OSError, ValueError) as error:
            raise RegistryUnreachable(self.url, str(getattr(error, "reason", error))) from error

    def _login(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode("ascii")

    def _tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.ca_file or None) if self.url.startswith("https") else None


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


def _schema(number: int, found: dict[str, Any]) -> RegisteredSchema:
    return RegisteredSchema(number, str(found.get("schemaType") or AVRO), found["schema"], int(found.get("version", 0)))


def _json_object(address: str, status: int, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RegistryRefused(address, status, "the answer is not a JSON object: it is not a schema registry")
    return found


def _refuse(address: str, status: int, content: bytes) -> None:
    """Raise the error that an answer reports, unless it is that something is unknown to the registry."""
    if status >= 500 or status in BUSY:
        raise RegistryUnreachable(address, f"{status} {content[:200].decode(errors='replace')}")
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if status == 404 and isinstance(found, dict) and found.get("error_code") in UNKNOWN:
        return
    why = str(found.get("message", found)) if isinstance(found, dict) else content[:200].decode(errors="replace")
    raise RegistryRefused(address, status, why)
