"""`fedbandit doctor`: what is installed, what is missing for what, does the server answer, does the token work."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path
from typing import Annotated

try:
    import typer
except ImportError:  # the base install
    from fedbandit.cli import plain as typer  # type: ignore[no-redef]

from fedbandit import __version__
from fedbandit.cli import doctor_checks
from fedbandit.cli.admin_client import AsJson, CaCert, print_json
from fedbandit.cli.doctor_checks import Finding

MARKS = {
    "ok": ("✓", "green"),
    "missing": ("–", "dim"),
    "skipped": ("–", "dim"),
    "warning": ("!", "yellow"),
    "failed": ("✗", "bold red"),
}


def doctor(
    url: Annotated[str, typer.Option(envvar="FEDBANDIT_URL", help="Server to check.", show_default=False)] = "",
    token: Annotated[
        str, typer.Option(envvar="FEDBANDIT_TOKEN", help="Token to check; it is never printed.", show_default=False)
    ] = "",
    model: Annotated[str | None, typer.Option(help="Model that the token should give access to.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="State directory of an agent, opened read-only.")] = None,
    ca_cert: CaCert = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation, a server, a token and a state directory. Exits with status 1 if a check fails."""
    findings = [*doctor_checks.packages(), *_about_server(url, token, model, ca_cert)]
    if state_dir is not None:
        findings += doctor_checks.state_dir(state_dir)
    healthy = all(finding.state != "failed" for finding in findings)
    if as_json:
        about = {"fedbandit": __version__, "python": platform.python_version(), "platform": platform.platform()}
        print_json({**about, "healthy": healthy, "findings": [finding.to_dict() for finding in findings]})
    else:
        _print(findings, healthy=healthy)
    if not healthy:
        raise typer.Exit(1)


def _about_server(url: str, token: str, model: str | None, ca_cert: str | None) -> list[Finding]:
    if not url:
        return [Finding("server", "reachable", "skipped", "give --url or set FEDBANDIT_URL to check one")]
    probe = doctor_checks.ServerProbe(url, token, ca_cert)
    found = list(doctor_checks.server(probe))
    if found[0].state == "failed":
        return found
    if not token:
        return [*found, Finding("token", "known", "skipped", "give --token or set FEDBANDIT_TOKEN to check one")]
    return [*found, *doctor_checks.token(probe, model)]


def _print(findings: list[Finding], *, healthy: bool) -> None:
    if importlib.util.find_spec("rich") is not None:
        _print_styled(findings, healthy=healthy)
        return
    print(_title())
    topic = ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            print(f"\n{topic}")
        print(f"  {MARKS[finding.state][0]} {finding.name:10} {finding.words}")
        if finding.advice:
            print(15 * " " + finding.advice)
    print("\n" + _conclusion(healthy))


def _print_styled(findings: list[Finding], *, healthy: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding

    console = Console(highlight=False)
    console.print(_title())
    topic = ""
    for finding in findings:
        if finding.topic != topic:
            topic = finding.topic
            console.print(f"\n[bold]{topic}[/]")
        mark, style = MARKS[finding.state]
        console.print(f"  [{style}]{mark}[/] {escape(finding.name):10} {escape(finding.words)}", soft_wrap=True)
        if finding.advice:
            console.print(Padding(escape(finding.advice), (0, 0, 0, 15)), style="cyan")
    console.print("\n" + _conclusion(healthy), style="" if healthy else "bold red")


def _title() -> str:
    return f"fedbandit {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def _conclusion(healthy: bool) -> str:
    return "All checks passed." if healthy else "Some checks failed; see ✗."
