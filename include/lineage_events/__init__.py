"""OpenLineage events of streams, plans, analyses and validations, sent once these are durably recorded."""
