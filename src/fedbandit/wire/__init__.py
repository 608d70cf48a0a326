"""Messages as bytes: the format that every client and server speaks."""
