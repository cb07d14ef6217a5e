"""The two kinds of error; whoever raises one decides its kind."""

from include.ground.secret_masking import mask_addresses


class HeadraceError(Exception):
    """Root of Headrace's own errors; `remedy` is the next command. Both are shown: secrets in addresses are masked."""

    def __init__(self, what: str, remedy: str = "") -> None:
        what, remedy = mask_addresses(what), mask_addresses(remedy)
        super().__init__(f"{what}\n  → {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class Terminal(HeadraceError):
    """A retry cannot help: something must be changed first."""


class Transient(HeadraceError):
    """Another system is unavailable; the same call may succeed later."""
