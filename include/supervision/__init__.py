"""Processes: what should run, what is seen to run, and how to get from one to the other."""

from include.supervision.observe import observe
from include.supervision.processes import bootstrap_servers, down, up
from include.supervision.states import ProcessState, ProcessStatus

__all__ = ["ProcessState", "ProcessStatus", "bootstrap_servers", "down", "observe", "up"]
