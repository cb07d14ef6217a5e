"""Parity."""
