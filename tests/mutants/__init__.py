"""Mutation testing: inserted defects that the fast tests must detect (`make mutants`)."""
