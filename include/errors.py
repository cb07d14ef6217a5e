"""The two ways to fail, decided where the failure is born."""


class HeadraceError(Exception):
    """Root of Headrace's own errors; `remedy` is the next thing to type or do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}\n  → {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class Terminal(HeadraceError):
    """Trying again cannot help: somebody has to change something first."""


class Transient(HeadraceError):
    """The outside is not ready or not there; the same call may succeed later."""
