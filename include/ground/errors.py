"""Errors are data: one class for each decision of whoever catches them; a code, facts, and the next command.

Raise one of the three classes: `Refused("the port is in use", "headrace down", code="port-in-use", port=8080)`. Only an
error that somebody catches by its name has a class of its own, which passes its facts on in the same way.
"""

import re

from include.ground.secret_masking import mask_addresses

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
