"""A board of cards in the process, each with the time of its making: `board_server.py`.

A card's type is told by the description of the tool alone, and its parent must be a card that is there.
"""

import json
import time

from by_hand import Refused, serve, tool

TYPES = ("bug", "chore", "feature")
create = tool("new_card", "Create a new bug, chore, or feature on the board.", card_type="string", title="string")
create["inputSchema"]["properties"]["parent_id"] = {"type": "integer"}
TOOLS = [
    create,
    tool("set_effort", "Sets the hours that a card takes.", card_id="integer", effort="integer"),
    tool("list_cards", "Lists all cards."),
]
cards: list[dict[str, object]] = []


def call(name, arguments):
    if name == "list_cards":
        return json.dumps({"cards": cards, "count": len(cards)})
    if name == "set_effort":
        found = [card for card in cards if card["id"] == arguments["card_id"]]
        if not found:
            raise Refused(f"Card {arguments['card_id']} not found.")
        found[0]["effort"] = arguments["effort"]
        return json.dumps(found[0])
    if arguments["card_type"] not in TYPES:
        raise Refused(f"Unknown type: {arguments['card_type']}.")
    if arguments.get("parent_id", 1) not in [1, *(card["id"] for card in cards)]:
        raise Refused("The parent is missing.")
    made = time.strftime("%Y-%m-%dT%H:%M:%S")
    number, type_id = len(cards) + 1, TYPES.index(arguments["card_type"]) + 1
    cards.append({"id": number, "type_id": type_id, "title": arguments["title"], "effort": number % 3, "made": made})
    return json.dumps(cards[-1])


serve("board", TOOLS, call)
