"""Masks secrets before texts and values are printed or written: passwords, tokens, JAAS, credentials in URLs."""

from __future__ import annotations

import json
import re

MASK = "***"
SECRET_NAME = re.compile(
    r"passw(or)?d|passphrase|secret|token|jaas|credential|(access|private|api|keystore)[._-]?key$", re.IGNORECASE
)
URL_CREDENTIALS = re.compile(r"(\w://[^/:@\s]*):[^\s\"']*@")
# name=value and "name": "value"; the quotes may be escaped, as in JSON within JSON.
ASSIGNMENT = re.compile(
    rf"""([\w.-]*(?:{SECRET_NAME.pattern.replace("$", "")})[\w.-]*\\*["']?\s*[=:]\s*)"""
    r"""(\\*"(?:[^"\\]|\\[^"])*\\*"|'[^']*'|[^\s&;,"'})\]]+)""",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Return whether the value of an option of this name is a secret."""
    return SECRET_NAME.search(name) is not None


def holds_secret(name: str, value: str) -> bool:
    """Return whether `name=value` contains a secret, by its name or within its value."""
    return mask_value(value, name) != value


def mask_secrets(text: str) -> str:
    """Return the text with secrets replaced by ***; a JSON object is masked by its keys, at every level."""
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if isinstance(content, dict):
        masked = mask_value(content)
        return text if masked == content else json.dumps(masked)
    return ASSIGNMENT.sub(rf"\1{MASK}", URL_CREDENTIALS.sub(rf"\1:{MASK}@", text))


def mask_value(value: object, name: str = "") -> object:
    """Return a JSON value with secrets replaced by ***; `name` is its key."""
    if is_secret(name) and value not in (None, ""):
        return MASK
    if isinstance(value, dict):
        return {key: mask_value(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [mask_value(item) for item in value]
    return mask_secrets(value) if isinstance(value, str) else value
