"""Fault injection on real processes by a seeded schedule; every observation must be counted exactly once.

    python -m tests.chaos --store sqlite --minutes 5 --seed 1

docs/reliability.md says what is done and what is checked.
"""
