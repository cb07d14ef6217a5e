"""Reference tables: small tables that change seldom and that events are joined with, every version kept."""
