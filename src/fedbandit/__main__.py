"""`python -m fedbandit` is `fedbandit`; without the extra for commands it is a sentence, not a traceback."""

import sys

from fedbandit.errors import MissingExtra


def main() -> None:
    """Run the command line, or say what to install."""
    try:
        from fedbandit.cli.main import main as run
    except MissingExtra as error:
        sys.exit(f"fedbandit: {error.code}: {error}")
    run()


if __name__ == "__main__":
    main()
