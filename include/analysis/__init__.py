"""Iterative and learning jobs over published tables."""
