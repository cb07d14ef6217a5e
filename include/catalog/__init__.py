"""Reads the datasets' YAML into frozen dataclasses; strict: an unknown key is an error."""
