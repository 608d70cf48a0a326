"""The server: merges the uploads of many agents into many models, each exactly once and durably."""
