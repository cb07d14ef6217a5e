"""OpenLineage events: what streams, plans, analyses and validations have recorded, sent once it is durable."""
