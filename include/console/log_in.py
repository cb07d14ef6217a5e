"""Who may decide: users of a password file, sessions in memory, and tokens against forged requests.

Reads: the password file, at each log-in.  Writes: the password file, for `headrace console --add-user`.
Guarantee: without a password file nobody can log in, and the console only shows.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from include.durable_files import write_atomically
from include.errors import Terminal

USER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
LINE = re.compile(rf"({USER_NAME.pattern}):scrypt:([0-9a-f]{{32}}):([0-9a-f]{{64}})")
LEAST_PASSWORD = 8
SESSION_SECONDS = 8 * 3600.0
TRIES, TRIES_WITHIN = 5, 60.0
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


class InvalidUser(Terminal):
    """A user's name or password is not acceptable; the file was not changed."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; the password file was not changed", "headrace console --add-user NAME")


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
    failures: dict[str, deque[float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_configured(self) -> bool:
        """Whether anybody could log in."""
        return self.passwords is not None

    def log_in(self, user: str, password: str, address: str) -> str | None:
        """Return the token of a new session, None for a wrong user or password.

        Raises PasswordFileUnusable; TooManyAttempts after five failures of an address within a minute.
        """
        if self.passwords is None:
            return None
        self._refuse_guessing(address)
        known = read_passwords(self.passwords).get(user, ("00" * 16, ""))
        if not hmac.compare_digest(password_hash(password, known[0]), known[1]):
            self._count_failure(address)
            return None
        token = secrets.token_urlsafe(32)
        with self.lock:
            self._forget_old()
            self.sessions[token] = UserSession(user, secrets.token_urlsafe(32), self.clock() + SESSION_SECONDS, known)
            self.failures.pop(address, None)
        return token

    def session(self, token: str) -> UserSession | None:
        """Return the session of a token, None when there is none or it has ended."""
        found = self.sessions.get(token)
        return found if found is not None and found.until > self.clock() else None

    def may_decide(self, session: UserSession) -> bool:
        """Whether the password file still has the user, with the same password. Raises PasswordFileUnusable."""
        return self.passwords is not None and read_passwords(self.passwords).get(session.user) == session.known

    def log_out(self, token: str) -> None:
        """End a session."""
        with self.lock:
            self.sessions.pop(token, None)

    def _refuse_guessing(self, address: str) -> None:
        with self.lock:
            recent = self.failures.setdefault(address, deque(maxlen=TRIES))
            if len(recent) == TRIES and self.clock() - recent[0] < TRIES_WITHIN:
                raise TooManyAttempts(TRIES_WITHIN - (self.clock() - recent[0]))

    def _count_failure(self, address: str) -> None:
        with self.lock:
            self.failures.setdefault(address, deque(maxlen=TRIES)).append(self.clock())

    def _forget_old(self) -> None:
        now = self.clock()
        self.sessions = {token: each for token, each in self.sessions.items() if each.until > now}
        while len(self.sessions) >= MOST_SESSIONS:
            del self.sessions[next(iter(self.sessions))]
        if len(self.failures) > MOST_SESSIONS:
            self.failures.clear()


class TooManyAttempts(Terminal):
    """An address failed to log in too often; it may try again after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many failed log-ins; try again in {seconds:.0f} s")
        self.seconds = seconds


def password_hash(password: str, salt: str) -> str:
    """Return the hash of a password as 64 hex digits; `salt` is 32 of them."""
    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=bytes.fromhex(salt), dklen=32, **COST).hex()


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


def add_user(path: Path, user: str, password: str) -> None:
    """Add a user to the password file, or change their password. Raises InvalidUser, PasswordFileUnusable, OSError."""
    if not USER_NAME.fullmatch(user):
        raise InvalidUser(f"{user[:80]!r} is not a user name: 1 to 64 of A-Z a-z 0-9 . _ @ -")
    if len(password) < LEAST_PASSWORD:
        raise InvalidUser(f"the password has fewer than {LEAST_PASSWORD} characters")
    known = dict(read_passwords(path)) if path.exists() else {}
    salt = secrets.token_hex(16)
    known[user] = (salt, password_hash(password, salt))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(f"{name}:scrypt:{each[0]}:{each[1]}\n" for name, each in known.items()))
    path.chmod(0o600)
