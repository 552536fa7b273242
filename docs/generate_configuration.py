"""Write docs/configuration.md from the configuration tree: `python docs/generate_configuration.py`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from mcp_rl.config import LARGE_MODEL_PRESET, RunConfig, section_of

PAGE = Path(__file__).with_name("configuration.md")
INTRODUCTION = """\
# Configuration

Every setting of a run, with its default and the reason for it. Give settings in a TOML file (`--config FILE`;
examples in `configs/`) or as dotted overrides after the command:

    mcp-rl train --server mcp_calculator train.learning_rate=3e-4 rollout.group_size=32

Overrides win over the file, and options such as `--steps` over both. Values are TOML; a word that is not valid TOML is
taken as text. `--dry-run --all` prints the resolved settings. *Large* is the default for any base model other than
`mcp-rl/tiny`. API keys are not settings: the judge's key is read from the environment, under the name that LiteLLM
expects.

`python docs/generate_configuration.py` writes this page.
"""


def page() -> str:
    return "\n".join([INTRODUCTION, *_section("The run", RunConfig, "", LARGE_MODEL_PRESET)])


def _section(title: str, model: type[BaseModel], prefix: str, large: dict[str, Any]) -> Iterator[str]:
    plain = {name: field for name, field in model.model_fields.items() if not section_of(field.annotation)}
    yield f"## {title}\n"
    if model is not RunConfig:
        yield f"{(model.__doc__ or '').strip()}\n"
    yield "| setting | default | large | why |\n|---|---|---|---|"
    for name, field in plain.items():
        yield f"| `{prefix}{name}` | {_value(field.default)} | {_value(large.get(name))} | {_line(field.description)} |"
    yield ""
    for name, field in model.model_fields.items():
        if section := section_of(field.annotation):
            yield from _section(f"`[{prefix}{name}]`", section, f"{prefix}{name}.", large.get(name, {}))


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def _value(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None or value == "":
        return ""
    return f"`{json.dumps(value, default=str)}`".replace('"', "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
