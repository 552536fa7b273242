"""An MCP server of recipes with numbered steps, of utensils that several recipes share, and of numbered rules."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scenarios"))
from by_hand import Refused, serve, tool

STEPS = {
    "Plum Pie": [("Roll out the dough.", 12), ("Halve all plums.", 9), ("Bake it on the lower shelf.", 45)],
    "Leek Soup": [("Wash every leek.", 4), ("Boil them in stock.", 25), ("Stir in some cream.", 2)],
    "Rye Bread": [("Knead rye with water.", 15), ("Let it rise in a bowl.", 90), ("Bake it in a tin.", 55)],
    "Bean Stew": [("Soak dried beans.", 480), ("Fry onions in oil.", 8), ("Simmer it under a lid.", 70)],
}
WEIGHTS = {"whisk": 80, "ladle": 120, "colander": 310}
UTENSILS = {
    "Plum Pie": ["whisk"], "Leek Soup": ["ladle", "colander"], "Rye Bread": ["whisk"], "Bean Stew": ["ladle"],
}  # fmt: skip
RULES = ["Wash your hands", "Taste twice", "Leave no knife around", "Close the window", "Feed the cat"]


def kitchen(name: str, given: dict[str, Any]) -> object:
    if name == "list_recipes":
        courses = [{"id": one, "name": one} for one in ("dessert", "starter", "side", "main")]
        recipes = [{"name": one, "servings": 2 + at, "course": courses[at]} for at, one in enumerate(STEPS)]
        return {"recipes": recipes, "paging": {"page": 1}}
    if name == "house_rules":
        return {"rules": [{"rule": at, "title": title} for at, title in enumerate(RULES, 1)]}
    if given["recipe"] not in STEPS:
        raise Refused(f"There is no recipe {given['recipe']}.")
    if name == "list_utensils":
        return {"utensils": [{"name": one, "grams": WEIGHTS[one]} for one in UTENSILS[given["recipe"]]]}
    steps = [{"step": at, "text": text, "minutes": took} for at, (text, took) in enumerate(STEPS[given["recipe"]], 1)]
    return {"recipe": given["recipe"], "steps": steps}


READ_ONLY = {"readOnlyHint": True}
TOOLS = [
    tool("list_recipes", "List all recipes.", READ_ONLY),
    tool("house_rules", "Return the rules of the house.", READ_ONLY),
    tool("get_recipe", "Return one recipe with its steps.", READ_ONLY, recipe="string"),
    tool("list_utensils", "List what a recipe needs.", READ_ONLY, recipe="string"),
]

if __name__ == "__main__":
    serve("kitchen", TOOLS, kitchen)
