"""The effect of a tool, as its name and its parameters tell it."""

from typing import Any

import pytest

from mcp_rl.explore.bearing import Bearing, bearing
from mcp_rl.toolserver.tools.listing import Tool

NUMBER, TEXT = {"type": "number"}, {"type": "string"}


@pytest.mark.parametrize(
    ("name", "parameters", "effect"),
    [
        ("add", {"a": NUMBER, "b": NUMBER}, Bearing.READS),
        ("add", {"numbers": {"type": "array", "items": NUMBER}}, Bearing.READS),
        ("add", {"first_number": NUMBER, "second_number": NUMBER}, Bearing.READS),
        (
            "add",
            {"params": {"type": "object", "properties": {"numbers": {"type": "array", "items": {}}}}},
            Bearing.READS,
        ),
        ("log", {"value": NUMBER, "base": NUMBER}, Bearing.READS),
        ("log", {"message": TEXT}, Bearing.CREATES),
        ("add", {"item": {"type": "object", "properties": {"name": TEXT}}}, Bearing.CREATES),
        ("add_numbers", {"x": NUMBER, "y": NUMBER}, Bearing.READS),
        ("add", {"item_id": {"type": "integer"}, "quantity": {"type": "integer"}}, Bearing.CREATES),
        ("add_values", {"range": TEXT, "values": {"type": "array", "items": NUMBER}}, Bearing.CREATES),
        ("add", {"text": TEXT}, Bearing.CREATES),
        ("add", {}, Bearing.CREATES),
    ],
)
def test_add_computes_only_where_it_takes_the_numbers_of_a_sum(
    name: str, parameters: dict[str, Any], effect: Bearing
) -> None:
    assert bearing(Tool(name, "", {"type": "object", "properties": parameters})) is effect


@pytest.mark.parametrize(
    ("name", "description", "effect"),
    [
        ("correlation", "Calculate the correlation of two lists.", Bearing.READS),
        ("matrix_add", "Add two matrices", Bearing.READS),
        ("roots", "Solves a quadratic equation", Bearing.READS),
        ("delete_estimate", "Calculate what is left, and delete it", Bearing.DESTROYS),
        ("checkin", "Convene a meeting.", Bearing.UNCLEAR),
        ("guest_add", "Add two guests", Bearing.CREATES),
        ("save_total", "Add two numbers and save the result", Bearing.CREATES),
    ],
)
def test_a_description_tells_of_computing_where_a_name_does_not(name: str, description: str, effect: Bearing) -> None:
    parameters = {"type": "object", "properties": {"a": TEXT, "b": TEXT}}
    assert bearing(Tool(name, description, parameters)) is effect
