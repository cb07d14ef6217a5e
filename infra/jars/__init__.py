"""The jars of Spark and of the broker: coordinates, hashes, download."""
