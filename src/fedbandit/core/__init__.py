"""Arrays in, arrays out: the numerics behind every algorithm, on numpy alone."""
