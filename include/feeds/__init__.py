"""Real data for Kafka: what a feed says, how it is sent, and which faults were put into it on purpose."""
