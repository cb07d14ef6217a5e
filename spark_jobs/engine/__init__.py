"""The work of the tables' owner: refine, active releases, patches, compaction."""
