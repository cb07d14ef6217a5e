"""What a process of the state folder shows of its progress: its log grows, it uses its processors."""

from __future__ import annotations

from contextlib import suppress

from include.ground.await_progress import cpu_steps
from include.ground.settings import Settings
from include.state.json_file import StateFileUnreadable
from include.state.process_logs import log_size
from include.state.run_files import is_elsewhere, read_run_file


def process_signs(settings: Settings, *names: str) -> tuple[tuple[int, int], ...]:
    """Return for each process the size of its log and its processor time, which differ after progress."""
    return tuple((log_size(settings, name), cpu_steps([_pid(settings, name)])) for name in names)


def _pid(settings: Settings, name: str) -> int | None:
    with suppress(StateFileUnreadable):
        run = read_run_file(settings, name)
        return None if run is None or is_elsewhere(run) else run.pid
    return None
