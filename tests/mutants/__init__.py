"""Planted defects, and whether the quick tests notice them: `make mutants`."""
