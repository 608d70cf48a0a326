"""Figures, tables, reports and progress."""
