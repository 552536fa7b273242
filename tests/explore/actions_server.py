"""An MCP server on stdio whose only tool does several things with notes, without an SDK. Only its errors name these."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bare_server import serve_tools

TEXT = {"type": "string"}
PROPERTIES = {
    "action": TEXT,
    "title": TEXT,
    "text": {**TEXT, "description": "The new text, for create and update"},
    "tag": {**TEXT, "description": "A tag (only for create)"},
}
ACTIONS = ["list", "get", "create", "update", "delete"]
schema = {"type": "object", "properties": PROPERTIES, "required": ["action"]}
TOOLS = [{"name": "manage_notes", "description": "Everything about notes.", "inputSchema": schema, "annotations": {}}]
notes = {
    "Harbour": {"text": "boats and fog", "tag": "sea"},
    "Meadow": {"text": "grass at noon", "tag": "land"},
    "Summit": {"text": "snow in June", "tag": "land"},
    "Reef": {"text": "corals", "tag": "sea"},
}


def call(name, arguments):
    action, title = arguments.get("action"), arguments.get("title")
    failure = None
    if action not in ACTIONS:
        return json.dumps({"success": False, "error": f"Unknown action: {action}", "available_actions": ACTIONS})
    if action == "list":
        return json.dumps({"notes": [{"title": name, **note} for name, note in notes.items()]})
    if not title:
        failure = f"title is required for {action}"
    elif (action == "create") == (title in notes):
        failure = f"Note not found: {title}" if action != "create" else f"Note exists already: {title}"
    if failure:
        return json.dumps({"success": False, "error": failure})
    if action == "get":
        return json.dumps({"title": title, **notes[title]})
    if action == "delete":
        del notes[title]
    else:
        given = {name: arguments[name] for name in ("text", "tag") if name in arguments}
        notes[title] = {"text": "", "tag": "", **notes.get(title, {}), **given}
    return json.dumps({"success": True, "title": title})


serve_tools("actions", TOOLS, call)
