"""The output of `mcp-rl servers inspect` on a terminal."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from mcp_rl.cli.printing.terminal import add_row, table
from mcp_rl.explore.check.inspection import Inspection, OfferedTool
from mcp_rl.system.visible import count, shortened, visible

_HINTS = {
    "readOnlyHint": ("read-only", "changes things"),
    "destructiveHint": ("may destroy", "destroys nothing"),
    "idempotentHint": ("idempotent", ""),
    "openWorldHint": ("reaches the outside world", ""),
}
_BOUNDS = {
    "enum": "one of", "const": "always", "default": "default", "exclusiveMinimum": "above", "exclusiveMaximum": "below",
    "pattern": "pattern", "format": "format",
}  # fmt: skip
_RANGES = (("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " items"))
_LONG = 300


def print_inspection(found: Inspection, console: Console) -> None:
    """Print the server, its tools, its resources and its prompts."""
    says = " ".join(filter(None, (found.server_info.get("name"), found.server_info.get("version"))))
    head = Text(visible(found.name), style="bold")
    head.append(f" over {found.transport}, protocol {found.protocol}", style="default")
    head.append(f" (it calls itself {shortened(says)})" if says else "", style="dim")
    console.print(head)
    cost = f"{count(len(found.tools), 'tool')}, {found.prompt_tokens:,} tokens of mcp-rl/tiny in every prompt"
    console.print(Text(f"{cost}, schema hash {found.schema_hash}"))
    console.print(Text(f"Isolation {found.isolation}: {found.isolation_reason}."))
    if found.package:
        about = " ".join(filter(None, (found.package["name"], found.package["version"])))
        console.print(Text(visible(f"Package {about} by {found.package['launcher']}, {found.package['integrity']}")))
    if found.command:
        console.print(Text(visible(f"Started as {shlex.join(found.command)}")))
    elif found.package:
        console.print(Text("Started as it is named, since the container is the server."))
    for warning in found.warnings:
        console.print(Text(visible(warning), style="yellow"))
    for tool in found.tools:
        _print_tool(tool, console)
    _print_entries("resource", found.resources, "uri", console)
    _print_entries("resource template", found.resource_templates, "uriTemplate", console)
    _print_entries("prompt", found.prompts, "name", console)


def _print_tool(tool: OfferedTool, console: Console) -> None:
    console.print()
    head = Text(visible(tool.called), style="bold cyan")
    if tool.called != tool.name:
        head.append(f" (the server calls it {visible(tool.name)})", style="default")
    hints = ", ".join(_hints(tool.annotations)) or "no annotations"
    head.append(f"  {hints}" if tool.offered else f"  {hints}; {tool.why_hidden}, hidden from models", style="dim")
    console.print(head)
    if tool.description:
        console.print(Text(visible(tool.description.strip(), lines=True)))
    properties = tool.parameters.get("properties")
    if isinstance(properties, dict) and properties:
        required = tool.parameters.get("required")
        shown = table("  parameter", "type", "", "description")
        for name, schema in properties.items():
            must = "required" if isinstance(required, list) and name in required else ""
            fields: dict[str, Any] = schema if isinstance(schema, dict) else {}
            about = [str(fields.get("description") or ""), *_rules(fields)]
            add_row(shown, f"  {name}", _type(schema), must, "; ".join(filter(None, about)), styles=("cyan",))
        console.print(shown)
    elif set(tool.parameters) - {"type", "properties", "additionalProperties", "required"}:
        console.print(Text("  " + _json(tool.parameters)))
    else:
        console.print(Text("  no parameters", style="dim"))
    if tool.output_schema is not None:
        console.print(Padding(Text(f"returns {_json(tool.output_schema)}", style="dim"), (0, 0, 0, 2)))


def _print_entries(noun: str, entries: list[dict[str, Any]], key: str, console: Console) -> None:
    if not entries:
        return
    console.print()
    console.print(Text(count(len(entries), noun), style="bold"))
    shown = table(f"  {key}", "about")
    for entry in entries:
        about = [entry.get(name) for name in ("title", "mimeType", "description")]
        arguments = entry.get("arguments")
        taken = (
            [str(one.get("name")) for one in arguments if isinstance(one, dict)] if isinstance(arguments, list) else []
        )
        words = [shortened(str(one)) for one in about if one] + ([f"takes {', '.join(taken)}"] if taken else [])
        add_row(shown, f"  {entry.get(key, '')}", "; ".join(words), styles=("cyan",))
    console.print(shown)


def _hints(annotations: dict[str, Any]) -> Iterator[str]:
    for key, (yes, no) in _HINTS.items():
        hint = annotations.get(key)
        if isinstance(hint, bool) and (word := yes if hint else no):
            yield word


def _rules(schema: dict[str, Any]) -> Iterator[str]:
    for key, words in _BOUNDS.items():
        if key in schema:
            yield f"{words} {_json(schema[key])}"
    for low, high, unit in _RANGES:
        if low in schema and high in schema:
            yield f"{_json(schema[low])} to {_json(schema[high])}{unit}"
        elif low in schema or high in schema:
            yield f"{'at least' if low in schema else 'at most'} {_json(schema.get(low, schema.get(high)))}{unit}"


def _type(schema: Any) -> str:
    """Return the type in a few words: `string`, `array of number`, `string or null`."""
    if not isinstance(schema, dict):
        return "anything"
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return " or ".join(dict.fromkeys(map(_type, schema[key])))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(map(str, kind))
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"array of {_type(schema['items'])}"
    return str(kind) if kind else "anything"


def _json(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False), _LONG)
