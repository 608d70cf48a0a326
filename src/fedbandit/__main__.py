"""`python -m fedbandit` is `fedbandit`."""

from fedbandit.cli.main import main

main()
