"""Plans: a change of a release or of history is planned, built, compared, approved, applied, rolled back."""
