"""One published algorithm per file, as state machines without I/O."""
