"""Adapters to other ecosystems; each needs an extra of its own."""
