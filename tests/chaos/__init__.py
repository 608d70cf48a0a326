"""The fire harness: real processes, a seeded adversary, and books that must balance to the last observation.

    python -m tests.chaos --store sqlite --minutes 5 --seed 1

docs/reliability.md says what is done and what is checked.
"""
