"""History recomputed: slices, patches, rebuilds, and all of it for a deep audit."""
