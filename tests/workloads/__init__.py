"""Known workloads of stream processors, each with an oracle that shares no code with the platform."""
