"""Who may decide: users of a password file, sessions in memory, and tokens against forged requests.

Guarantee: without a password file nobody can log in, and the console only shows. A session ends when the password file
lacks its user or has another password.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from include.ground.durable_files import write_atomically
from include.ground.errors import Refused, Terminal
from include.ground.http_server import source_network

MOST_KEYS = 10_000


class TooManyAttempts(Terminal):
    """Log-ins failed too often; the next attempt may be made after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many failed log-ins; try again in {seconds:.0f} s")
        self.seconds = seconds


@dataclass(frozen=True)
class FailureLimit:
    """How many failures are free, how long the next attempt waits, how long at most, and when they are forgotten."""

    free: int
    wait: float
    longest: float
    forgotten: float = 3600.0


BY_SOURCE = FailureLimit(5, 60.0, 900.0)
BY_USER = FailureLimit(10, 60.0, 900.0)
IN_ALL = FailureLimit(100, 1.0, 10.0)
LIMITS = {"source": BY_SOURCE, "user": BY_USER, "": IN_ALL}


@dataclass
class Failures:
    """The failures of one network or user, the last one at `last`."""

    count: int = 0
    last: float = 0.0

    def wait(self, limit: FailureLimit, now: float) -> float:
        beyond = self.count - limit.free
        if beyond < 0:
            return 0.0
        return self.last + min(limit.longest, limit.wait * 2.0 ** min(beyond, 20)) - now


@dataclass(frozen=True)
class Attempt:
    """An attempt that has begun, with the counters that have counted it."""

    user: str
    source: str
    keys: tuple[tuple[str, str], ...]


@dataclass
class GuessLimits:
    """The failures of one server."""

    failures: dict[tuple[str, str], Failures] = field(default_factory=dict)
    proven: dict[tuple[str, str], None] = field(default_factory=dict)
    """User and network of log-ins that succeeded, the last ones."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, user: str, source: str, now: float) -> Attempt:
        """Count an attempt as a failure, which it is unless it succeeds. Raises TooManyAttempts."""
        with self._lock:
            keys = [("source", source)]
            if (user, source) not in self.proven:
                keys += [("user", user), ("", "")]
            counters = {key: self._counter(key, now) for key in keys}
            if (wait := max(each.wait(LIMITS[key[0]], now) for key, each in counters.items())) > 0:
                raise TooManyAttempts(wait)
            for each in counters.values():
                each.count, each.last = each.count + 1, now
        return Attempt(user, source, tuple(keys))

    def withdraw(self, attempt: Attempt) -> None:
        with self._lock:
            for key in attempt.keys:
                if (found := self.failures.get(key)) is not None and found.count:
                    found.count -= 1

    def succeed(self, attempt: Attempt) -> None:
        """Take a successful attempt off, and trust its network for its user."""
        self.withdraw(attempt)
        with self._lock:
            self.proven[attempt.user, attempt.source] = None
            if len(self.proven) > MOST_KEYS:
                del self.proven[next(iter(self.proven))]

    def _counter(self, key: tuple[str, str], now: float) -> Failures:
        found = self.failures.get(key)
        if found is None or now - found.last > LIMITS[key[0]].forgotten:
            if len(self.failures) >= MOST_KEYS:
                self._forget_oldest()
            found = self.failures[key] = Failures()
        return found

    def _forget_oldest(self) -> None:
        kept = sorted(self.failures.items(), key=lambda item: item[1].last)[MOST_KEYS // 2 :]
        self.failures = dict(kept)


USER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
LINE = re.compile(rf"({USER_NAME.pattern}):scrypt:([0-9a-f]{{32}}):([0-9a-f]{{64}})")
LEAST_PASSWORD = 8
SESSION_SECONDS = 8 * 3600.0
MOST_SESSIONS = 1000
# 16 MB and some 50 ms for each guess.
COST = {"n": 2**14, "r": 8, "p": 1, "maxmem": 64 * 2**20}


class PasswordFileUnusable(Terminal):
    """The password file cannot be read, is readable by others, or has a line that is none."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"password file {path}: {why}; nobody can log in", f'headrace console --add-user NAME; chmod 600 "{path}"'
        )
        self.path = path


@dataclass(frozen=True)
class UserSession:
    """A logged-in user; every form that changes something must contain `csrf`."""

    user: str
    csrf: str
    until: float
    known: tuple[str, str]
    """Salt and hash of the password that was given."""


@dataclass
class Access:
    """Log-ins of one server. `passwords` is the password file, None without one."""

    COOKIE: ClassVar[str] = "headrace_session"

    passwords: Path | None
    clock: Callable[[], float] = time.monotonic
    sessions: dict[str, UserSession] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _limits: GuessLimits = field(default_factory=GuessLimits)
    _read: tuple[tuple[int, ...], Mapping[str, tuple[str, str]]] = field(default_factory=lambda: ((), {}))

    @property
    def is_configured(self) -> bool:
        return self.passwords is not None

    def log_in(self, user: str, password: str, address: str) -> str | None:
        """Return the token of a new session, None for a wrong user or password.

        Raises PasswordFileUnusable; TooManyAttempts after too many failures (`GuessLimits`).
        """
        if self.passwords is None:
            return None
        attempt = self._limits.begin(user, source_network(address), self.clock())
        try:
            known = self._users().get(user, ("00" * 16, ""))
            is_right = hmac.compare_digest(password_hash(password, known[0]), known[1])
        except PasswordFileUnusable:
            self._limits.withdraw(attempt)
            raise
        if not is_right:
            return None
        self._limits.succeed(attempt)
        token = secrets.token_urlsafe(32)
        with self.lock:
            self._forget_old()
            self.sessions[token] = UserSession(user, secrets.token_urlsafe(32), self.clock() + SESSION_SECONDS, known)
        return token

    def session(self, token: str) -> UserSession | None:
        """Return the session of a token, None when there is none or it has ended.

        It ends after some hours, and as soon as the password file lacks the user or has another password.
        """
        found = self.sessions.get(token)
        if found is None or found.until <= self.clock():
            return None
        try:
            return found if self._users().get(found.user) == found.known else None
        except PasswordFileUnusable:
            return None

    def log_out(self, token: str) -> None:
        with self.lock:
            self.sessions.pop(token, None)

    def _users(self) -> Mapping[str, tuple[str, str]]:
        """Return the users of the password file, which is read when it has changed. Raises PasswordFileUnusable."""
        if self.passwords is None:
            return {}
        version = file_version(self.passwords)
        if version != self._read[0]:
            self._read = version, read_passwords(self.passwords)
        return self._read[1]

    def _forget_old(self) -> None:
        now = self.clock()
        self.sessions = {token: each for token, each in self.sessions.items() if each.until > now}
        while len(self.sessions) >= MOST_SESSIONS:
            del self.sessions[next(iter(self.sessions))]


def password_hash(password: str, salt: str) -> str:
    """Return the hash of a password as 64 hex digits; `salt` is 32 of them."""
    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=bytes.fromhex(salt), dklen=32, **COST).hex()


def file_version(path: Path) -> tuple[int, ...]:
    """Return what changes when a file is written or replaced, or its mode changes. Raises PasswordFileUnusable."""
    try:
        found = path.stat()
    except OSError as error:
        raise PasswordFileUnusable(path, error.strerror or "it cannot be read") from error
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_mode


def read_passwords(path: Path) -> Mapping[str, tuple[str, str]]:
    """Return salt and hash by user. Raises PasswordFileUnusable."""
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise PasswordFileUnusable(path, "others than its owner may read or write it")
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PasswordFileUnusable(path, getattr(error, "strerror", None) or "it is not UTF-8") from error
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None:
            raise PasswordFileUnusable(path, f"line {number} is not NAME:scrypt:SALT:HASH")
        found[match[1]] = (match[2], match[3])
    return found


def _invalid_user(why: str) -> Refused:
    what = f"{why}; the password file was not changed"
    return Refused(what, "headrace console --add-user NAME", code="invalid-user")


def add_user(path: Path, user: str, password: str) -> None:
    """Add a user to the password file, or change their password. Raises Refused, PasswordFileUnusable, OSError."""
    if not USER_NAME.fullmatch(user):
        raise _invalid_user(f"{user[:80]!r} is not a user name: 1 to 64 of A-Z a-z 0-9 . _ @ -")
    if len(password) < LEAST_PASSWORD:
        raise _invalid_user(f"the password has fewer than {LEAST_PASSWORD} characters")
    known = dict(read_passwords(path)) if path.exists() else {}
    salt = secrets.token_hex(16)
    known[user] = (salt, password_hash(password, salt))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(f"{name}:scrypt:{each[0]}:{each[1]}\n" for name, each in known.items()))
    path.chmod(0o600)
