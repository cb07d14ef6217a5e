"""Exit codes of the command line; 2 is a usage error or a HeadraceError (`main`)."""

FAILED = 1
"""The command did its work, and the answer is no: not balanced, not approved, not valid, not caught up, not all."""
INTERRUPTED = 130
"""Ctrl-C, as shells report it."""
