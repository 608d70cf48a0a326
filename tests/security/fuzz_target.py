"""The process that atheris fuzzes in; `fuzz` starts it."""

import sys

if __name__ == "__main__":
    from tests.security.fuzz import fuzz

    fuzz(sys.argv)
