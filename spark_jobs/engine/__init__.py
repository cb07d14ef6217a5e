"""Refine, active releases, patches, compaction: what an owner does with its tables."""
