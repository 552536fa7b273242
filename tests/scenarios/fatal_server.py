"""A server with a tool that ends it: `fatal_server.py HOW [PLACE]`, without an SDK so that it starts in 40 ms.

HOW is what `leave` does: exit at once, exit `after` its answer, at its `second`, `fifth` or `twentieth` call, `block`
all of the server, block it for a `while`, or answer `garbage`. With a PLACE, `add_note` keeps its titles there.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from by_hand import serve, tool

HOW, NOTES = sys.argv[1], Path(sys.argv[2]) / "notes.json" if len(sys.argv) > 2 else None
TOOLS = [
    tool("double", "Doubles a number.", number="integer"),
    tool("shout", "Returns the text in capitals.", text="string"),
    tool("leave", "Leaves a message.", message="string"),
    *([tool("add_note", "Adds a note.", title="string"), tool("list_notes", "Lists the notes.")] if NOTES else []),
]
calls = 0


def leave():
    global calls
    calls += 1
    if HOW == "exit" or calls == {"second": 2, "fifth": 5, "twentieth": 20}.get(HOW):
        os._exit(3)
    if HOW == "after":
        threading.Timer(0.05, os._exit, (3,)).start()
    if HOW in ("block", "while"):
        time.sleep(600 if HOW == "block" else 6)
    if HOW == "garbage":
        print("Traceback (most recent call last):", flush=True)
    return None if HOW == "garbage" else "left"


def call(name, arguments):
    if name == "double":
        return 2 * arguments["number"]
    if name == "shout":
        return arguments["text"].upper()
    if name == "leave":
        return leave()
    notes = json.loads(NOTES.read_text()) if NOTES.exists() else []
    if name == "add_note":
        NOTES.write_text(json.dumps([*notes, arguments["title"]]))
    return f"added {arguments['title']}" if name == "add_note" else json.dumps(notes)


serve("fatal", TOOLS, call)
