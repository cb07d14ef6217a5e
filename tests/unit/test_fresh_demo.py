"""A demo with --fresh removes a state folder only if it knows all that is in it."""

from __future__ import annotations

import inspect
import re

from demo.state import STATE_FOLDERS

from include.ground import paths


def test_every_folder_of_the_state_is_removed_by_a_fresh_demo() -> None:
    named = set(re.findall(r'_path\("(\w+)(?=[/"])', inspect.getsource(paths)))
    assert {"warehouse", "spill", "removed"} <= named
    assert named - set(STATE_FOLDERS) == set()
