"""One view per module, each a function from a look to a frame."""
