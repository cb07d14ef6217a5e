"""Changes of history as plans: planned, built beside production, compared, approved, applied, undone."""
