"""The read-only dashboard of a server: HTML rendered on the server, kept current by server-sent events."""
