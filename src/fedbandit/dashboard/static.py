"""Our own style sheet, scripts and icon, from the package, under an address that changes with their content."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

FOLDER = Path(__file__).parent / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOR_EVER = "public, max-age=31536000, immutable"


@cache
def files() -> dict[str, bytes]:
    """All static files by name; they are few and small."""
    return {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}


@cache
def edition() -> str:
    """Changes when any of the files does; scripts find each other in the same edition."""
    digest = hashlib.sha256()
    for name, content in files().items():
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()[:12]


def static_url(name: str) -> str:
    """Where a file is."""
    return f"/static/{edition()}/{name}"


async def static(request: Request) -> Response:
    """A file. Only the current edition may be kept for ever; an old address gets the current file, to look at once."""
    name = request.path_params["name"]
    content = files().get(name)
    if content is None:
        return PlainTextResponse("there is no such file", 404)
    is_current = request.path_params["edition"] == edition()
    headers = {"Cache-Control": FOR_EVER if is_current else "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(content, 200, headers, TYPES[Path(name).suffix])
