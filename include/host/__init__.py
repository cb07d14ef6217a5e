"""The machine: Java, verified jars, TCP ports, and the tether that ends a child with its parent."""
