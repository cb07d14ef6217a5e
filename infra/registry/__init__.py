"""A schema registry on this machine, to try Avro with."""
