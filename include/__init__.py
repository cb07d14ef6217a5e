"""The control plane: plain Python that decides whether and when; it never computes a column."""
