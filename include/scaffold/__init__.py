"""A new dataset's folder, inferred from a sample of its records."""
