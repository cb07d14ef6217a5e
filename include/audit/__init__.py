"""The independent count: Kafka, bronze, silver, rejected and gold compared from outside, without Spark and ledger."""
