"""`python -m fedbandit` is `fedbandit`; without the extra for commands there are `--version`, `doctor` and `agent`."""

from importlib.util import find_spec


def main() -> None:
    """Run the command line, or the part of it that the base install has."""
    if find_spec("typer") is not None:
        from fedbandit.cli.main import main as run

        run()
        return
    from fedbandit import __version__
    from fedbandit.cli import plain
    from fedbandit.cli.agent import agent
    from fedbandit.cli.doctor import doctor
    from fedbandit.cli.reporting import run_command

    run_command(lambda: plain.run({"agent": agent, "doctor": doctor}, f"fedbandit {__version__}"))


if __name__ == "__main__":
    main()
