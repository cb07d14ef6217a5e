"""Which files of the product a piece of work enters, in the order in which a reader follows it.

The reader follows functions in the order of their first calls. A *return* is a step to a file that was already left.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from types import CodeType, FrameType
from typing import Any

from include.ground.settings import CLONE

PRODUCT = tuple(f"{CLONE / folder}/" for folder in ("include", "spark_jobs"))
OWN_CODE = f"{CLONE / 'include' / 'datasets'}/"


@dataclass
class TracedWay:
    """The functions that were called first, by thread in the order of the threads' first calls."""

    calls: dict[int, dict[CodeType, None]] = field(default_factory=dict)

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call; Python calls this for each event of a thread."""
        code = frame.f_code
        # Comprehensions belong to the function around them; modules are entered once, by whoever imports them first.
        is_function = code.co_name == "<lambda>" or not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(PRODUCT):
            self.calls.setdefault(threading.get_ident(), {}).setdefault(code)

    @property
    def steps(self) -> list[str]:
        """The files in the order of first calls; a file is named again when the way comes back to it."""
        codes = dict.fromkeys(code for called in self.calls.values() for code in called)
        files = [code.co_filename for code in codes if not code.co_filename.startswith(OWN_CODE)]
        return [file.removeprefix(f"{CLONE}/") for file, _ in groupby(files)]

    @property
    def files(self) -> list[str]:
        """Each file once."""
        return list(dict.fromkeys(self.steps))

    @property
    def returns(self) -> int:
        """How often the way comes back to a file that it has left."""
        return len(self.steps) - len(self.files)


@contextmanager
def traced_way() -> Iterator[TracedWay]:
    """Follow this thread, and the threads that begin meanwhile."""
    way, before = TracedWay(), sys.getprofile()
    threading.setprofile(way.note)
    sys.setprofile(way.note)
    try:
        yield way
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]
