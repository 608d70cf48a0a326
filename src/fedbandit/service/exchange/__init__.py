"""The exchange: an upload in, a download out, merged exactly once."""
