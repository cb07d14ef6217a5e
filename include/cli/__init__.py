"""The command line: one file per verb group; it parses and prints, without logic of its own."""
