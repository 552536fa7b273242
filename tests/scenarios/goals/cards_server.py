"""An MCP server on stdio with notes, and cards of the same names that say something else, without an SDK."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from bare_server import serve_tools

NOTES = {
    "chair": "The chair is old and made of oak",
    "Olga": "Olga sat down on a chair",
    "Grace": "Grace repairs boats in the harbour",
    "Compass": "The compass points to the harbour",
    "Market": "The market opens at noon",
    "Meadow": "Nobody mows the meadow",
}
CARDS = {"chair": "Bought by Olga", "harbour": "Used by Grace with Compass"}
TEXT = {"type": "string"}


def tool(name, *parameters):
    schema = {"type": "object", "properties": dict.fromkeys(parameters, TEXT), "required": list(parameters)}
    return {"name": name, "description": name.replace("_", " "), "inputSchema": schema, "annotations": {}}


TOOLS = [tool("list_notes"), tool("get_note", "name"), tool("get_card", "name")]


def call(name, arguments):
    if name == "list_notes":
        return json.dumps({"notes": [{"name": note} for note in NOTES]})
    if name == "get_note":
        text = NOTES.get(arguments["name"])
        return json.dumps({"note": {"name": arguments["name"], "text": text}} if text else {"error": "no such note"})
    about = CARDS.get(arguments["name"], "Nothing is known")
    return json.dumps(
        {"name": arguments["name"], "about": about}
        if arguments["name"] in {*NOTES, *CARDS}
        else {"error": "no such card"}
    )


serve_tools("cards", TOOLS, call)
