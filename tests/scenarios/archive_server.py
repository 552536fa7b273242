"""An archive of texts whose results are words: hashes in pairs, names in a starred list, ids in sentences."""

import hashlib

from by_hand import Refused, serve, tool

EDITIONS = {hashlib.sha1(name.encode()).hexdigest(): name for name in ("Harbour", "Meadow", "Compass", "Orchard")}
SHELVES = {"north/tall": 12, "south-wall": 31, "cellar": 4, "attic": 7}
ORDERS = {"ORD-118": "paper", "ORD-204": "glue", "ORD-77": "thread"}
TOOLS = [
    tool("archive_log", "Shows the editions."),
    tool("archive_shelf", "Shows the shelves."),
    tool("archive_orders", "Shows the open orders."),
    tool("archive_show", "Shows an edition.", revision="string"),
    tool("archive_open", "Opens a shelf.", shelf_name="string"),
    tool("archive_status", "Returns the status of an order.", order_number="string"),
]


def found(things, key):
    if key not in things:
        raise Refused(f"{key!r} did not resolve to anything")
    return things[key]


def call(name, arguments):
    if name == "archive_log":
        return "Editions:\n" + "\n\n".join(f"Commit: {sha}\nTitle: {title}" for sha, title in EDITIONS.items())
    if name == "archive_shelf":
        return "\n".join(("* " if shelf == "cellar" else "  ") + shelf for shelf in SHELVES)
    if name == "archive_orders":
        return " ".join(f"There is an order {order} of Ada's." for order in ORDERS)
    if name == "archive_show":
        return f"The edition is called {found(EDITIONS, arguments['revision'])}."
    if name == "archive_open":
        return f"{found(SHELVES, arguments['shelf_name'])} books"
    return f"{found(ORDERS, arguments['order_number'])} is on its way"


serve("archive", TOOLS, call)
