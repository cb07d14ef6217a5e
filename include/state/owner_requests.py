"""What is asked of the owner of a dataset's publication: one file, obeyed between two runs, and answered.

Guarantee: an order stays until it is answered, also over a crash of the owner; obeying it twice is obeying it once.
Does not: decide anything; plans do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from include.errors import Terminal, Transient
from include.paths import order_path
from include.settings import Settings
from include.state.atomic_files import write_atomically

PROMOTE, RETIRE, CORRECT, UNDO, MAINTAIN = "promote", "retire", "correct", "undo", "maintain"


class OrderPending(Transient):
    """The owner has not answered the order before; `whose` says whose it is."""

    def __init__(self, dataset: str, whose: str) -> None:
        super().__init__(f"{dataset}: the order of {whose} is not answered yet; nothing was asked", "try again")
        self.dataset, self.whose = dataset, whose


class OrderUnreadable(Terminal):
    """The order file is none; it is only ever replaced whole, so somebody edited it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is no order ({why}); it was not obeyed", f'rm "{path}"')
        self.path = path


@dataclass(frozen=True)
class Order:
    """`kind` PROMOTE: let readers see `release`; RETIRE: stop keeping it fresh; `plan` is who asks.

    CORRECT: put what `plan` has done again in the place of what `release` has; UNDO: take that back.
    MAINTAIN: put small files together and remove old ones; it is nobody's plan.
    """

    plan: str
    kind: str
    release: str
    attempt: str = ""
    """Which build of the plan is meant, of CORRECT and UNDO."""

    @property
    def whose(self) -> str:
        """Who asks, for people."""
        return f"plan {self.plan}" if self.plan else self.kind


@dataclass(frozen=True)
class Answer:
    """What came of the order of `plan`: `refused` says why not, "" when it was obeyed; `batch` as published then.

    `remedy` is the next command after a refusal; `done` what else is to be told.
    """

    plan: str
    kind: str
    release: str
    refused: str
    batch: int
    remedy: str = ""
    done: Mapping[str, Any] = field(default_factory=dict)

    def is_to(self, order: Order) -> bool:
        """Whether it is this very order that is answered."""
        return (self.plan, self.kind, self.release) == (order.plan, order.kind, order.release)


def find_order(settings: Settings, dataset: str) -> Order | None:
    """Return the order that waits to be obeyed."""
    found = _read(order_path(settings, dataset))
    try:
        return None if found is None else Order(**found)
    except TypeError as error:
        raise OrderUnreadable(order_path(settings, dataset), str(error)) from error


def find_answer(settings: Settings, dataset: str, order: Order) -> Answer | None:
    """Return the answer to this very order."""
    found = _read(answer_path(settings, dataset))
    answer = None if found is None else Answer(**found)
    return answer if answer is not None and answer.is_to(order) else None


def give_order(settings: Settings, dataset: str, order: Order) -> None:
    """Ask; the same order again is no other order. OrderPending when another one waits."""
    waiting = find_order(settings, dataset)
    if waiting is not None and waiting != order:
        raise OrderPending(dataset, waiting.whose)
    answer_path(settings, dataset).unlink(missing_ok=True)
    write_atomically(order_path(settings, dataset), json.dumps(asdict(order)))


def withdraw_order(settings: Settings, dataset: str) -> None:
    """Ask no more."""
    order_path(settings, dataset).unlink(missing_ok=True)


def give_answer(settings: Settings, dataset: str, answer: Answer) -> None:
    """Answer, and let the order be gone: in this turn, so that a crash between leaves an order to obey again."""
    write_atomically(answer_path(settings, dataset), json.dumps(asdict(answer)))
    waiting = find_order(settings, dataset)
    # Who asked may have given up meanwhile, and somebody else asked.
    if waiting is not None and answer.is_to(waiting):
        withdraw_order(settings, dataset)


def answer_path(settings: Settings, dataset: str) -> Path:
    """Where the owner answers."""
    return order_path(settings, dataset).with_suffix(".answer.json")


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise OrderUnreadable(path, str(error)) from error
    if not isinstance(found, dict):
        raise OrderUnreadable(path, "it holds no object")
    return found
