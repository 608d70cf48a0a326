"""Stores of models, agents and tokens: memory, SQLite or PostgreSQL behind one protocol."""
