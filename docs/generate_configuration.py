"""Write docs/configuration.md from the configuration tree: `python docs/generate_configuration.py`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from mcp_rl.config import DEFAULTS, SIZES, Default, ModelKind, RunConfig, defaults_for, flat_values, section_of

PAGE = Path(__file__).with_name("configuration.md")
DEFAULTS_PAGE = Path(__file__).with_name("defaults.md")
LARGE = ModelKind(SIZES.index("up to 14B"))
INTRODUCTION = """\
# Configuration

Every setting of a run, with its default and the reason for it. Give settings in a TOML file (`--config FILE`;
examples in `configs/`) or as dotted overrides after the command:

    mcp-rl train --server mcp_calculator train.learning_rate=3e-4 rollout.group_size=32

Overrides win over the file, and options such as `--steps` over both. Values are TOML; a word that is not valid TOML is
taken as text. `--dry-run --all` prints the resolved settings. *Large* is the default for an instruct model of up to
14B parameters with an adapter; [defaults.md](defaults.md) has every size and kind. API keys are not settings: the
judge's key is read from the environment, under the name that LiteLLM expects.

`python docs/generate_configuration.py` writes this page.
"""
DEFAULTS_INTRODUCTION = """\
# Defaults by size and kind

What `--base-model` sets for you, with the reason and the source of each value. Everything can be set otherwise
([configuration.md](configuration.md)); `mcp-rl doctor --base-model NAME` prints what a run would have.

The **size** is that of the model's name (`Qwen2.5-0.5B-Instruct`: up to 1B), or of the config.json in its folder; a
name without a size is taken as up to 14B. A model **thinks** if its name says so, if it belongs to a family that thinks
unless told otherwise, or if the template in its folder does; `chat.template_arguments.enable_thinking` decides where it
is set. **Full** is `train.method=full`. A quantised base (QLoRA) has the values of an adapter: the adapter is float32
either way, and learned as well at the same rates (QLoRA, section 4). The values of `mcp-rl/tiny` were measured on it.
Sources are papers, other trainers' defaults, or *ours*: chosen here from the reason given. No value for a larger model
was measured on a GPU yet.

"""


def page() -> str:
    return "\n".join([INTRODUCTION, *_section("The run", RunConfig, "", defaults_for(LARGE))])


def defaults_page() -> str:
    tiny = flat_values(RunConfig(server=("any",)))
    heads = [f"| setting | tiny | {' | '.join(SIZES)} | why | source |", f"|---{'|---' * len(SIZES)}|---|---|---|"]
    rows = [row for default in DEFAULTS for row in _rows(default, tiny[default.key])]
    return DEFAULTS_INTRODUCTION + "\n".join([*heads, *rows]) + "\n"


def _rows(default: Default, tiny: Any) -> Iterator[str]:
    kinds = (("", default.values), ("thinking", default.thinking), ("full", default.full))
    for kind, values in kinds:
        if values is not None:
            cells = " | ".join("none" if value is None else _value(value) for value in values)
            cells = f"{(_value(tiny) or 'none') if not kind else ''} | {cells}"
            said = f"{default.why} | {default.source}" if not kind else " | "
            yield f"| `{default.key}`{f', {kind}' if kind else ''} | {cells} | {said} |"


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
    DEFAULTS_PAGE.write_text(defaults_page(), encoding="utf-8")
