"""What readers see: the publications, and the published tables pinned to them."""
