"""A post office whose only parcel has another random id in each process, and remarks that no call shows."""

import json
import random

from by_hand import serve, tool

parcels = [{"id": f"p-{random.randrange(10**9):09}", "to": "Ada"}]
TOOLS = [
    tool("add_parcel", "Takes in a parcel.", to="string"),
    tool("write_remark", "Notes a remark.", text="string"),
    tool("list_parcels", "Lists all parcels."),
]


def call(name, arguments):
    if name == "list_parcels":
        return json.dumps({"parcels": parcels})
    if name == "add_parcel":
        parcels.append({"id": f"p-{random.randrange(10**9):09}", "to": arguments["to"]})
    return "Done."


serve("post", TOOLS, call)
