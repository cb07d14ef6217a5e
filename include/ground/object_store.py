"""An S3-compatible object store: whole objects, conditional puts, lists. Does not know tables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.ground.durable_files import unique_suffix
from include.ground.errors import Transient, mask_secrets
from include.ground.settings import Settings, read_password

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store

LOCATION = re.compile(r"s3a?://(?P<bucket>[a-z0-9][a-z0-9.-]+)(?:/(?P<prefix>.*?))?/?")
REQUEST_SECONDS = 30.0
"""Limit of one attempt of a request; a file is sent in parts of 5 MB, one request each."""
RETRIES = 3
DELETED_AT_ONCE = 1000


class StoreUnavailable(Transient):
    """The object store cannot be reached, or refuses the request or the credentials."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"object store {url}: {why}", "headrace doctor   (tries the store)")
        self.url = url


@dataclass(frozen=True)
class StoredObject:
    """An object's content and its tag, for a conditional put."""

    content: bytes
    tag: str


@dataclass(frozen=True)
class ListedObject:
    """An object in a list: its key, size and time of its last put."""

    key: str
    size: int
    written: datetime


@dataclass(frozen=True)
class ObjectStore:
    """The objects below one prefix of a bucket; keys are relative to it. Every method raises StoreUnavailable."""

    url: str
    client: S3Store
    delta_options: Mapping[str, str]
    """What delta-rs needs to open a table of this store at `url`/key."""

    def read(self, key: str) -> StoredObject | None:
        import obstore

        with self._errors():
            try:
                found = obstore.get(self.client, key)
            except FileNotFoundError:
                return None
            return StoredObject(bytes(found.bytes()), str(found.meta["e_tag"]).strip('"'))

    def create(self, key: str, content: bytes) -> bool:
        """Put an object unless it exists; return whether it did not. A repeated request may find its own object."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._errors():
            try:
                obstore.put(self.client, key, content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

    def replace(self, key: str, content: bytes, tag: str) -> bool:
        """Replace the object with this tag; return whether it still had the tag."""
        # Ceph accepts only a tag without quotation marks, others may require them; both are the same condition.
        return self._replace(key, content, tag) or self._replace(key, content, f'"{tag}"')

    def _replace(self, key: str, content: bytes, tag: str) -> bool:
        import obstore
        from obstore.exceptions import PreconditionError

        with self._errors():
            try:
                obstore.put(self.client, key, content, mode={"e_tag": tag}, use_multipart=False)
            except (PreconditionError, FileNotFoundError):
                return False
            return True

    def write(self, key: str, content: bytes | Path) -> None:
        """Put an object, from bytes or a file, and replace any other."""
        import obstore

        with self._errors():
            obstore.put(self.client, key, content)

    def download(self, key: str, file: Path) -> bool:
        """Write an object to a file, completely or not at all; return whether the object exists."""
        import obstore

        part = file.with_name(f"{file.name}.{unique_suffix()}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        with self._errors():
            try:
                found = obstore.get(self.client, key)
            except FileNotFoundError:
                return False
            with part.open("wb") as opened:
                for chunk in found.stream(1 << 20):
                    opened.write(chunk)
        part.rename(file)
        return True

    def find(self, key: str) -> ListedObject | None:
        """Return what a list says of one object, None where there is none."""
        import obstore

        with self._errors():
            try:
                return _listed(obstore.head(self.client, key))
            except FileNotFoundError:
                return None

    def list(self, prefix: str, after: str | None = None) -> Iterator[ListedObject]:
        """Yield the objects below a prefix, given as a folder's path; only those after a key, if it is given."""
        import obstore

        with self._errors():
            for page in obstore.list(self.client, prefix, offset=after):
                yield from map(_listed, page)

    def children(self, prefix: str) -> Sequence[str]:
        """Return the keys right below a prefix, of objects and of folders."""
        import obstore

        with self._errors():
            found = obstore.list_with_delimiter(self.client, prefix)
            return [*found["common_prefixes"], *(each["path"] for each in found["objects"])]

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing one is no error."""
        import obstore

        with self._errors():
            for first in range(0, len(keys), DELETED_AT_ONCE):
                obstore.delete(self.client, list(keys[first : first + DELETED_AT_ONCE]))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise StoreUnavailable for errors of the client."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise StoreUnavailable(self.url, reason(str(error))) from error


def _listed(found: ObjectMeta) -> ListedObject:
    return ListedObject(found["path"], found["size"], found["last_modified"])


DEFAULT_REGION = "us-east-1"
"""What clients of AWS take without AWS_REGION; stores of others accept any."""


def find_store(settings: Settings) -> ObjectStore | None:
    """Return the store of HEADRACE_WAREHOUSE, None without one. Sends nothing. Raises PasswordUnreadable."""
    return _connected(settings.warehouse, *_access(settings)) if settings.warehouse else None


def arrow_client(settings: Settings) -> Any:
    """Return Arrow's own client of the store's endpoint, whose paths begin with a bucket. Raises PasswordUnreadable.

    A client in Python would wait for the interpreter's lock on Arrow's threads, while a scanner that is being opened
    has that lock and waits for these threads.
    """
    return _arrow_client(*_access(settings))


@lru_cache(maxsize=4)
def _arrow_client(endpoint: str, region: str, key_id: str, secret: str) -> Any:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    scheme, _, host = endpoint.rpartition("://")
    return S3FileSystem(
        access_key=key_id or None,
        secret_key=secret or None,
        region=region,
        scheme=scheme or None,
        endpoint_override=host.rstrip("/") or None,
        connect_timeout=REQUEST_SECONDS,
        request_timeout=REQUEST_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=RETRIES),
    )


def _access(settings: Settings) -> tuple[str, str, str, str]:
    """Return endpoint, region, key id and secret; without a key, clients use AWS's variables or the machine's role."""
    secret = settings.warehouse_secret_file if settings.warehouse_key_id else None
    password = read_password("HEADRACE_WAREHOUSE_SECRET_FILE", secret) if secret else ""
    region = os.environ.get("AWS_REGION", DEFAULT_REGION)
    return settings.warehouse_endpoint, region, settings.warehouse_key_id, password


# A process keeps its connections.
@lru_cache(maxsize=4)
def _connected(location: str, endpoint: str, region: str, key_id: str, secret: str) -> ObjectStore:
    from obstore.store import S3Store

    found = LOCATION.fullmatch(location)
    assert found is not None, "the setting is validated"
    access: dict[str, str] = {"region": region}
    if endpoint:
        access["endpoint"] = endpoint
    if key_id:
        access |= {"access_key_id": key_id, "secret_access_key": secret}
    is_plain, within = endpoint.startswith("http://"), timedelta(seconds=REQUEST_SECONDS)
    config: dict[str, Any] = {**access, "virtual_hosted_style_request": False}
    client = S3Store(
        found["bucket"],
        prefix=found["prefix"] or None,
        client_options={"allow_http": is_plain, "timeout": within},
        retry_config={"max_retries": RETRIES, "retry_timeout": within},
        **config,
    )
    options = {f"aws_{name}": value for name, value in access.items()}
    options |= {"conditional_put": "etag", "aws_allow_http": str(is_plain).lower()}
    # By default delta-rs would wait for three minutes.
    seconds = f"{REQUEST_SECONDS:.0f}s"
    options |= {"timeout": seconds, "retry_timeout": seconds, "max_retries": str(RETRIES)}
    return ObjectStore(location.rstrip("/"), client, options)


def reason(text: str) -> str:
    """Return the first line of a client's error, and the code that the store answered with."""
    code = re.search(r"<Code>(\w+)</Code>", text)
    first = text.splitlines()[0].split(": <?xml")[0]
    return mask_secrets(f"{first} ({code[1]})" if code else first)


def keys_below(objects: Iterable[ListedObject]) -> dict[str, int]:
    """Return size by key."""
    return {each.key: each.size for each in objects}
