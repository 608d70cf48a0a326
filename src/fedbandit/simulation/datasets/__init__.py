"""Worlds from real data."""
