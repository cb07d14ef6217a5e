"""Passwords by file: read when they are used, and never kept in a setting."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from include.ground.errors import Terminal


class PasswordUnreadable(Terminal):
    """A file with a password cannot be read; `path` names it, `setting` is the variable that names the file."""

    def __init__(self, setting: str, path: Path, why: str) -> None:
        super().__init__(
            f"{setting}: {path} cannot be read: {why}; nothing was started",
            "write the password into that file, readable for this user alone (chmod 600)",
        )
        self.setting, self.path = setting, path


def read_password(setting: str, path: Path) -> str:
    """Return the first line of the file that a setting names. Raises PasswordUnreadable."""
    try:
        return path.read_text("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise PasswordUnreadable(setting, path, str(error)) from error


def with_password(url: str, setting: str, path: Path | None) -> str:
    """Return the URL of a database with the password of a file; unchanged without a file, and when it names one."""
    parts = urlsplit(url)
    if path is None or parts.username is None or parts.password is not None:
        return url
    user, _, server = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(read_password(setting, path), safe='')}@{server}"))
