"""The pages of docs/tutorials and docs/how-to run as they are written, and print what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from task_pages import blocks_of, is_shown, pages, printed_by, script_of

from include.ground.settings import CLONE

PAGES = pages()
BINARIES = Path(sys.executable).parent
AT_MOST = 570


@pytest.mark.extended
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_page_of_a_task_runs_as_it_is_written(page: Path, tmp_path: Path) -> None:
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    assert blocks, f"{page.name} has no commands"
    ended = _run(script_of(blocks), tmp_path)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    for block, printed in zip(blocks, printed_by(ended.stdout, blocks), strict=True):
        assert block.shown is None or is_shown(block.shown, printed), f"{block.commands}printed\n{printed}"


def _run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a page's script in a folder that looks like the clone; whatever happens, nothing keeps running."""
    (folder / "include").symlink_to(CLONE / "include")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "AIRFLOW"))}
    environment = plain | {
        "PATH": f"{BINARIES}:{os.environ['PATH']}",
        "HEADRACE_STATE": str(folder / "state"),
        "HEADRACE_DRIVER_MEMORY": "1g",
        "COLUMNS": "120",
        "PYTHONPATH": str(CLONE),
    }
    process = subprocess.Popen(
        ["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=AT_MOST)
        return subprocess.CompletedProcess(script, process.returncode, output, errors)
    finally:
        # What the page starts in the background ends with its shell, also when that has no time left to end it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        for state in folder.glob("state*"):
            left = environment | {"HEADRACE_STATE": str(state)}
            subprocess.run(["headrace", "down"], cwd=folder, env=left, capture_output=True, timeout=120, check=False)
