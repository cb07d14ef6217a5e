"""Exit codes of the command line; 2 is a usage error or a HeadraceError (`main`)."""

FAILED = 1
"""The command worked and its result is negative: not balanced, not approved, not valid, not caught up."""
INTERRUPTED = 130
"""Ctrl-C, as shells report it."""
