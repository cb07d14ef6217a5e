"""Exit codes of the command line; 2 is a usage error or a HeadraceError (`main`)."""

INTERRUPTED = 130
"""Ctrl-C, as shells report it."""
