"""Errors with a code, facts and the next command, and the masking of secrets in all that is shown.

A new error is one of three classes: `Refused("the port is in use", "headrace down", code="port-in-use", port=8080)`. It
needs a class of its own only if somebody catches it by name; older errors have one nevertheless.
"""

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
# Between spaces and quotes. One pattern for all of it would begin a search for the last @ at each ://.
UNBROKEN = re.compile(r"[^\s\"']+")
SCHEME = re.compile(r"\w://")
NAMED_USER = re.compile(r"[^/:@]*:")
LONE_USER = re.compile(r"[^/?#]*@")
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
    text = UNBROKEN.sub(lambda found: _mask_users(found[0]), text)
    for pattern in (PARAMETER, BEARER, EQUATION):
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def _mask_users(text: str) -> str:
    """Mask the users of URLs: with a password, which may contain any character, all before the last @."""
    last, masked, begin = text.rfind("@"), "", 0
    while begin <= last and (scheme := SCHEME.search(text, begin, last)):
        masked, begin = masked + text[begin : scheme.end()], scheme.end()
        lone = LONE_USER.match(text, begin)
        end = last + 1 if NAMED_USER.match(text, begin, last) else lone.end() if lone else begin
        if end > begin:
            masked, begin = f"{masked}{MASK}@", end
    return masked + text[begin:]


def mask_value(value: object, name: str = "") -> object:
    """Return a JSON value with secrets replaced by ***; `name` is its key."""
    if is_secret(name) and value not in (None, ""):
        return MASK
    if isinstance(value, dict):
        return {key: mask_value(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [mask_value(item) for item in value]
    return mask_secrets(value) if isinstance(value, str) else value


WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


class HeadraceError(Exception):
    """Root of Headrace's own errors; `remedy` is the next command. Both are shown: secrets in addresses are masked.

    `code` names the error for programs and tests, by default after its class; `facts` holds the values that it reports.
    """

    def __init__(self, what: str, remedy: str = "", *, code: str = "", **facts: object) -> None:
        what, remedy = mask_addresses(what), mask_addresses(remedy)
        super().__init__(f"{what}\n  → {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy
        self.code = code or WORD_START.sub("-", type(self).__name__).lower()
        self.facts = facts


class Terminal(HeadraceError):
    """A retry cannot help: something must be changed first."""


class Refused(Terminal):
    """Everything works, and what was asked for is not done as things stand: ask for something else. Nothing changed."""


class Transient(HeadraceError):
    """Another system is unavailable; the same call may succeed later."""
