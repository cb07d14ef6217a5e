"""Masks secrets before texts and values are printed or written: passwords, tokens, JAAS, credentials in URLs."""

from __future__ import annotations

import json
import re

MASK = "***"
WORDS = (
    r"(?:passw(?:or)?d|passphrase|\bpwd\b|secret|token|jaas|credential|fernet|signature|"
    r"(?:access|private|api|keystore)[._-]?key\b)"
)
SECRET_NAME = re.compile(rf"(?!.*(?:file|location|path)$).*{WORDS}", re.IGNORECASE | re.DOTALL)
# A file that holds a secret is none itself.
NAME = rf"(?<![\w.-])(?=[\w.-]*{WORDS})(?![\w.-]*(?:file|location|path)\\*[\"']?\s*[=:])[\w.-]+"
# A text in quotes, which may be escaped, as in JSON within JSON, or may lack its end. Otherwise all up to a space.
VALUE = r"""(?:\\*"(?:[^"\\]|\\[^"])*(?:\\*"|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z)|(?:\\.|[^\s&"'\\])+)"""
EQUATION = re.compile(rf"""({NAME}\\*["']?\s*=\s*){VALUE}""", re.IGNORECASE)
ASSIGNMENT = re.compile(rf"""({NAME}\\*["']?\s*[=:]\s*){VALUE}""", re.IGNORECASE)
# All before the last @: a token may be the user, and a password may contain any character.
USER_INFO = re.compile(r"(\w://)(?:[^/:@\s\"']*:[^\s\"']*|[^\s\"'/?#]*)@")
# Names that say nothing outside of a URL.
PARAMETER = re.compile(r"([?&;](?:key|pass|pin|auth|sig|code|sas|session|jwt)=)[^\s&;#\"']+", re.IGNORECASE)
BEARER = re.compile(r"\b((?:bearer|basic)\s+)[\w.~+/=-]{12,}", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Return whether the value of an option of this name is a secret."""
    return SECRET_NAME.match(name) is not None


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
    return ASSIGNMENT.sub(rf"\1{MASK}", mask_addresses(text))


def mask_addresses(text: str) -> str:
    """Return the text with the secrets of URLs, of `name=value` and of headers replaced by ***.

    It keeps `name: value`, which in a sentence is an explanation of a name.
    """
    for pattern, kept in ((USER_INFO, rf"\1{MASK}@"), (PARAMETER, rf"\1{MASK}"), (BEARER, rf"\1{MASK}")):
        text = pattern.sub(kept, text)
    return EQUATION.sub(rf"\1{MASK}", text)


def mask_value(value: object, name: str = "") -> object:
    """Return a JSON value with secrets replaced by ***; `name` is its key."""
    if is_secret(name) and value not in (None, ""):
        return MASK
    if isinstance(value, dict):
        return {key: mask_value(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [mask_value(item) for item in value]
    return mask_secrets(value) if isinstance(value, str) else value
