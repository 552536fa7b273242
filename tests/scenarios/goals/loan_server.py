"""A server of tools that compute, and keep nothing. Each answer says how long it took."""

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from by_hand import JSON, Refused, serve, tool

METRES = {"m": 1, "km": 1000, "mile": 1609.344}
_PAIR = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
TOOLS = [
    tool("loan_summary", "Plans a loan.", principal="integer", annual_rate_pct="number", term_years="integer"),
    tool("savings_plan", "Plans savings.", deposit="integer", years="integer"),
    tool("pension_plan", "Plans a pension.", deposit="integer", years="integer"),
    tool("fact", "Calculate the factorial of a number.", n="integer"),
    tool("length_in", "Converts a length.", value="number", from_unit="string", to_unit="string"),
    tool("echo", "Repeats a text.", text="string"),
    tool("lot", "Draws a lot.", bound="integer"),
    {"name": "less", "description": "Subtract two numbers.",
     "inputSchema": {"type": "object", "properties": {"params": _PAIR}, "required": ["params"]}},
    {"name": "sum_up", "description": "Sum of numbers.",
     "inputSchema": {"type": "object", "properties": {"numbers": {"type": "array", "items": {"type": "number"}}},
                     "required": ["numbers"]}},
]  # fmt: skip
TOOLS[4]["inputSchema"]["properties"] |= {
    name: {"type": "string", "enum": sorted(METRES)} for name in ("from_unit", "to_unit")
}


def answer(name: str, given: JSON) -> JSON:
    match name:
        case "loan_summary":
            if given["principal"] <= 0 or given["annual_rate_pct"] <= 0 or not 0 < given["term_years"] <= 60:
                raise Refused("A loan needs a principal, a rate and a term above zero.")
            rate, months = given["annual_rate_pct"] / 1200, 12 * given["term_years"]
            monthly = given["principal"] * rate / (1 - (1 + rate) ** -months)
            return {
                "principal": given["principal"],
                "currency": "EUR",
                "monthly_payment": round(monthly, 2),
                "total_interest": round(monthly * months - given["principal"], 2),
            }
        case "savings_plan":
            return {"final_sum": 12 * given["deposit"] * given["years"]}
        case "pension_plan":  # the same question would have two answers
            return {"final_sum": 11 * given["deposit"] * given["years"]}
        case "fact":
            if not 0 <= given["n"] <= 40:
                raise Refused("n is out of range.")
            found = 1
            for factor in range(2, given["n"] + 1):
                found *= factor
            return {"result": found}
        case "length_in":
            return {"converted": given["value"] * METRES[given["from_unit"]] / METRES[given["to_unit"]]}
        case "echo":
            return {"said": given["text"]}
        case "lot":
            return {"ticket": random.random()}
        case "less":
            return {"result": {"result": given["params"]["a"] - given["params"]["b"]}}
        case "sum_up":
            return {"result": sum(given["numbers"])}
    raise Refused(f"There is no tool {name}.")


def call(name: str, given: JSON) -> JSON:
    return {"success": True, **answer(name, given), "execution_time_ms": random.random()}


serve("loans", TOOLS, call)
