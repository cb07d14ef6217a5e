"""Starts the process that sends OpenLineage events.

After a crash: the runner starts it again; it continues where events were delivered last.
Does not: make or send an event (include/lineage_events).
"""

from __future__ import annotations

import sys

from include.process_control.child_process import spawn, tethered
from include.process_control.driver_process import driver_environment
from include.secret_masking import mask_secrets
from include.settings import CLONE, Settings
from include.state.process_states import OPENLINEAGE
from include.state.run_files import RunFile


def start_openlineage(settings: Settings) -> RunFile:
    """Start sending events, so that it ends with this process."""
    argv = tethered([sys.executable, "-m", "include.lineage_events.lineage_emitter"])
    extra = {"receiver": mask_secrets(settings.openlineage_url) or str(settings.openlineage_file)}
    return spawn(settings, OPENLINEAGE, argv, CLONE, driver_environment(settings), extra)
