"""The jars of Spark and of the broker: which ones, their hashes, and how they come here."""
