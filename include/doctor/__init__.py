"""Is this machine fit to run Headrace: one plain function per question."""
