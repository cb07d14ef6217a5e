"""The demo: a year of real flights from Kafka to gold, watched, asked, scored and audited."""
