"""The command line: it stands on top and wires things; nobody imports it."""
