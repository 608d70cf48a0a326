"""A read-only window on the service: server-rendered pages that stay live by server-sent events."""
