"""Administration: operations, tokens, backups."""
