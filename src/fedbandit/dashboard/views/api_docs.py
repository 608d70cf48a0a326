"""The HTTP API as HTML, rendered from the OpenAPI document without foreign scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fedbandit.dashboard.components import table
from fedbandit.dashboard.markup import Child, Html, join, tag

METHODS = ("get", "post", "put", "patch", "delete")
UNUSED = ("HTTPValidationError", "ValidationError")  # FastAPI's own; our errors have another shape
Document = Mapping[str, Any]


def api_docs(document: Document) -> Html:
    """All routes, then all schemas."""
    routes = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if method in METHODS
    ]
    groups: dict[str, list[Html]] = {}
    for path, method, operation in routes:
        groups.setdefault(_group(path), []).append(_route(path, method, operation))
    known = document.get("components", {}).get("schemas", {})
    schemas = {name: known[name] for name in sorted(known) if name not in UNUSED}
    return join(
        tag(
            "div",
            tag("h1", "HTTP API"),
            tag(
                "p",
                f"fedbandit {document['info']['version']}. Machine-readable: ",
                tag("a", "openapi.json", href="/openapi.json"),
                ". Requests carry the header ",
                tag("code", "Authorization: Bearer <token>"),
                ".",
                class_="lead",
            ),
            class_="view-head",
        ),
        [tag("section", tag("h2", name), found, class_="routes") for name, found in groups.items()],
        _problems(routes[0][2]["responses"]) if routes else None,
        tag(
            "section", tag("h2", "Schemas"), [_schema(name, schemas[name]) for name in sorted(schemas)], class_="routes"
        ),
    )


def _group(path: str) -> str:
    if path.startswith("/v1/models/{model}/agents"):
        return "Agents"
    if path.startswith("/v1/models"):
        return "Models"
    return "Tokens" if path.startswith("/v1/tokens") else "Monitoring"


def _route(path: str, method: str, operation: Document) -> Html:
    summary = tag(
        "summary",
        tag("span", method.upper(), class_=f"method {method}"),
        tag("code", _breakable(path)),
        tag("span", _worded(operation.get("description", "")), class_="quiet"),
    )
    parameters = operation.get("parameters", [])
    body = operation.get("requestBody", {}).get("content", {})
    good = {status: answer for status, answer in operation["responses"].items() if status.startswith(("2", "3"))}
    return tag(
        "details",
        summary,
        _parameters(parameters) if parameters else None,
        [tag("p", "Body: ", _named(kind, content)) for kind, content in body.items()],
        [tag("p", f"{status}: {answer['description']} ", _contents(answer)) for status, answer in good.items()],
        id=re.sub(r"\W+", "-", f"{method}{path}").strip("-"),
    )


def _worded(text: str) -> list[Child]:
    """Text in which `names` are code."""
    return [tag("code", piece) if i % 2 else piece for i, piece in enumerate(text.split("`"))]


def _breakable(path: str) -> list[Child]:
    """A path that may be broken after a slash on a narrow screen."""
    parts = re.split(r"(?<=/)", path)
    return [join(piece, Html("<wbr>")) for piece in parts]


def _parameters(found: list[Document]) -> Html:
    rows = [
        [
            tag("th", tag("code", item["name"]), scope="row"),
            f"{item['in']}{', required' if item.get('required') else ''}",
            _type(item.get("schema", {})),
        ]
        for item in found
    ]
    return table("Parameters", ["Parameter", "Where", "Type"], rows)


def _contents(answer: Document) -> list[Child]:
    return [_named(kind, content) for kind, content in answer.get("content", {}).items()]


def _named(kind: str, content: Document) -> Html:
    return join(tag("code", kind), " ", _type(content.get("schema", {})))


def _type(schema: Document) -> Child:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return tag("a", name, href=f"#schema-{name}")
    if "anyOf" in schema:
        return [join(" or " if i else "", _type(choice)) for i, choice in enumerate(schema["anyOf"])]
    words = [" or ".join(map(repr, schema["enum"]))] if "enum" in schema else [str(schema.get("type", ""))]
    words += list(_limits(schema))
    return ", ".join(word for word in words if word)


def _limits(schema: Document) -> Iterator[str]:
    for key, word in (("minimum", "≥"), ("maximum", "≤"), ("default", "default")):
        if schema.get(key) not in (None, ""):
            yield f"{word} {schema[key]}"
    if "items" in schema and schema["items"].get("type"):
        yield f"of {schema['items']['type']}"


def _schema(name: str, schema: Document) -> Html:
    required = set(schema.get("required", ()))
    rows = [
        [tag("th", tag("code", key), scope="row"), "required" if key in required else "", _type(value)]
        for key, value in schema.get("properties", {}).items()
    ]
    fields = table(f"Fields of {name}", ["Field", "", "Type"], rows) if rows else None
    heading = tag("h3", name, id=f"schema-{name}")
    return tag("div", heading, tag("p", _worded(schema["description"])) if schema.get("description") else None, fields)


def _problems(responses: Document) -> Html:
    rows = [
        [tag("th", status, scope="row"), _worded(answer["description"])]
        for status, answer in sorted(responses.items())
        if status >= "400"
    ]
    text = tag("p", "Every error is JSON of one shape: ", tag("code", '{"error": "sequence_gap", "message": "…"}'))
    return tag("section", tag("h2", "Errors"), text, table("Errors", ["Status", "Meaning"], rows), class_="routes")
