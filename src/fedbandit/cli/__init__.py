"""The command line: the top layer, which no other layer imports."""
