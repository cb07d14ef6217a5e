"""The command line: one file per verb group; it wires and prints, it decides nothing."""
