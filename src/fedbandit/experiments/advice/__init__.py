"""Is sharing worth it for a fleet? The log, the tests, the page."""
