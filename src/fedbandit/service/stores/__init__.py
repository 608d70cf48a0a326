"""Where models, agents and tokens live: memory, SQLite or PostgreSQL behind one protocol."""
