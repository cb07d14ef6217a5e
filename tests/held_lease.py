"""A lease that nobody else wants: for owners that tests open and forget in one process."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class HeldLease:
    """A lease of this process."""

    epoch: int = 1
    location: str = "a test"

    def is_held(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def with_minimum_epoch(self, least: int) -> HeldLease:
        return replace(self, epoch=max(self.epoch, least))
