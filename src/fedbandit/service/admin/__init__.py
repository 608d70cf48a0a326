"""Administration: operations, authentication, backups."""
