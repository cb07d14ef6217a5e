"""The two kinds of error; whoever raises one decides its kind."""


class HeadraceError(Exception):
    """Root of Headrace's own errors; `remedy` is the next command."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}\n  → {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class Terminal(HeadraceError):
    """A retry cannot help: something must be changed first."""


class Transient(HeadraceError):
    """Another system is unavailable; the same call may succeed later."""
