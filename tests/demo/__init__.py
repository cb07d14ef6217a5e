"""The demo: a year of real flights from Kafka to gold, with queries, a score and an audit."""
