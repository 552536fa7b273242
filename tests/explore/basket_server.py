"""An MCP server on stdio whose state is behind handles, without an SDK: `basket_server.py FORM PLACE`.

FORM says how a new basket's handle is returned: "bare", as the whole text, or "named", under the key `basket`. The
parameter that takes it is `basket_id`. What a call cannot do is said in a result, not by an error.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bare_server import serve_tools

FORM, PLACE = sys.argv[1], Path(sys.argv[2])
FILE = PLACE / "baskets.json"
TEXT = {"type": "string"}


def tool(name, **parameters):
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"name": name, "description": name.replace("_", " "), "inputSchema": schema, "annotations": {}}


TOOLS = [
    tool("list_baskets"),
    tool("show_basket", basket_id=TEXT),
    tool("open_new_basket", owner=TEXT),
    tool("put_item", basket_id=TEXT, item={"type": "string", "enum": ["lamp", "chair", "kettle"]}),
]


def call(name, arguments):
    baskets = json.loads(FILE.read_text()) if FILE.exists() else {}
    if name == "list_baskets":
        return json.dumps({"status": "listed", "message": "All baskets there are, in order:", "baskets": list(baskets)})
    if name == "open_new_basket":
        handle = f"b-{len(baskets) + 1}"
        FILE.write_text(json.dumps({**baskets, handle: [arguments["owner"]]}))
        return handle if FORM == "bare" else json.dumps({"status": "opened", "basket": handle})
    if arguments["basket_id"] not in baskets:
        return json.dumps({"status": "error", "message": "There is no basket of that id."})
    basket = baskets[arguments["basket_id"]]
    if name == "put_item":
        basket.append(arguments["item"])
        FILE.write_text(json.dumps(baskets))
        return json.dumps({"status": "put"})
    return json.dumps({"owner": basket[0], "items": basket[1:]})


serve_tools("baskets", TOOLS, call)
