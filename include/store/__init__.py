"""The object store that has each publication, with its tables, before readers see it."""
