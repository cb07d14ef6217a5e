"""Event producers for Kafka: real flights and weather, with injected faults and a manifest."""
