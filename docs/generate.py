"""Write the parts of the reference that come from the code: `python docs/generate.py`.

configuration.md and defaults.md come from the configuration tree, the tables of options in commands.md from the
commands, the table of hooks in plugins.md from the hook specifications, and the sentences on the names in api.md from
their docstrings.
"""

import inspect
import json
import re
from collections.abc import Iterator
from enum import EnumType
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import mcp_rl
from mcp_rl.cli import app
from mcp_rl.config import DEFAULTS, SIZES, ModelKind, RunConfig, defaults_for, flat_values, section_of
from mcp_rl.plugins import hookspecs

DOCS = Path(__file__).resolve().parent
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

`python docs/generate.py` writes this page.
"""
DEFAULTS_INTRODUCTION = """\
# Defaults by size and kind

What `--base-model` sets for you, and why. Any of it can be [set otherwise](configuration.md);
`mcp-rl doctor --base-model NAME` prints what a run would have.

- **Size**: from the model's name (`Qwen2.5-0.5B-Instruct`: up to 1B) or the config.json in its folder; else up to 14B.
- **Thinking**: by the model's name, family or chat template, or `chat.template_arguments.enable_thinking`.
- **Full**: `train.method=full`. A quantised base has an adapter's values (QLoRA, section 4).
- **Source**: a paper, another trainer's default, or *ours*. Those of `mcp-rl/tiny` were measured on it; no value for a
  larger model was measured on a GPU yet.

"""


def page() -> str:
    return "\n".join([INTRODUCTION, *_section("The run", RunConfig, "", defaults_for(LARGE))])


def defaults_page() -> str:
    tiny = flat_values(RunConfig(server=("any",)))
    by_size = [default for default in DEFAULTS if not _same(default.values)]
    lines = [f"| setting | tiny | {' | '.join(SIZES)} |", f"|---|---{'|---' * len(SIZES)}|"]
    for default in by_size:
        for kind, values in (("", default.values), (", full", default.full)):
            if values:
                first = "" if kind else _default(tiny[default.key])
                lines.append(f"| `{default.key}`{kind} | {first} | {' | '.join(map(_default, values))} |")
    lines += ["", *(f"- `{default.key}`: {default.why} Source: {default.source}." for default in by_size)]
    lines += ["", "All base models other than `mcp-rl/tiny` share these values:", ""]
    lines += ["| setting | tiny | others | why | source |", "|---|---|---|---|---|"]
    for default in (default for default in DEFAULTS if default not in by_size):
        kinds = (("thinking", default.thinking), ("full", default.full))
        others = "; ".join([_default(default.values[0]), *(f"{kind} {_default(v[0])}" for kind, v in kinds if v)])
        lines.append(
            f"| `{default.key}` | {_default(tiny[default.key])} | {others} | {default.why} | {default.source} |"
        )
    return DEFAULTS_INTRODUCTION + "\n".join(lines) + "\n"


def _same(values: tuple[Any, ...]) -> bool:
    return all(value == values[0] for value in values)


def _default(value: Any) -> str:
    return _value(value) or "none"


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


def all_commands(group: Any = None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command with its words, including those of groups."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        yield f"{prefix}{name}", command
        if hasattr(command, "commands"):
            yield from all_commands(command, f"{prefix}{name} ")


def commands_page() -> str:
    """Return commands.md with each command's table of options, between the two comments of its section."""
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    first = dict(_options(dict(all_commands())["train"]))
    for name, command in all_commands():
        heading = f"\n## `mcp-rl {name}`\n"
        before, found, section = page.partition(heading)
        own, end, rest = section.partition("\n## ")
        if not found or own.count(_BEGIN) != 1:
            raise SystemExit(f"docs/commands.md has no section on mcp-rl {name} with the lines {_BEGIN} and {_END}.")
        rows = list(_options(command))
        alike = [option for option, said in rows if name != "train" and first.get(option) == said]
        lines = [f"| {option} | {said} |" for option, said in rows if option not in alike]
        if alike:
            lines.append(f"| {', '.join(alike)} | As for [`mcp-rl train`](#mcp-rl-train). |")
        own = _between(own, ["| option | what it does |", "|---|---|", *lines] if lines else ["No options."])
        page = before + heading + own + end + rest
    return page


def plugins_page() -> str:
    """Return plugins.md with the table of hooks."""
    hooks = [hook for hook in vars(hookspecs).values() if isinstance(hook, FunctionType)]
    rows = [
        f"| `{hook.__name__}({', '.join(inspect.signature(hook).parameters)})` | {_line(hook.__doc__)} |"
        for hook in hooks
        if hook.__module__ == hookspecs.__name__
    ]
    page = (DOCS / "plugins.md").read_text(encoding="utf-8")
    return _between(page, ["| hook | purpose |", "|---|---|", *rows])


def api_page() -> str:
    """Return api.md, where each public name has a line, with the first sentence on each."""

    def line(found: re.Match[str]) -> str:
        return f"- `{found[1]}`: {_sentence(found[1])}"

    page = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = _API_LINE.findall(page)
    if sorted(listed) != sorted(mcp_rl.__all__):
        wrong = sorted(set(listed) ^ set(mcp_rl.__all__)) or listed
        raise SystemExit(f"docs/api.md must have one line for each public name: - `NAME`: (wrong: {', '.join(wrong)}).")
    return _API_LINE.sub(line, page)


def _sentence(name: str) -> str:
    """Return the first sentence on a public name: of its docstring or, for a value, of the string below it."""
    value = getattr(mcp_rl, name)
    if isinstance(value, type | FunctionType):
        documented = value.__doc__
    else:
        home = import_module(mcp_rl._HOMES[name])
        after = Path(home.__file__ or "").read_text(encoding="utf-8").partition(f"\n{name} = ")[2]
        documented = re.sub(r"\A.*\n\"\"\"|\"\"\"[\s\S]*", "", after)
    return re.split(r"(?<=[.!?])\s", _line(documented), maxsplit=1)[0]


_API_LINE = re.compile(r"^- `(\w+)`:.*$", re.MULTILINE)
_BEGIN, _END = "<!-- python docs/generate.py writes this table -->", "<!-- end -->"
_CODE = re.compile(
    r"(?<![`\w/])(--[a-z][a-z-]*(?: (?:NAME@URL|reset))?|mcp-rl/tiny|scripted:\w+|https?://[\w.:/]+\w|\.mcp_rl|NAME@STEP|NAME\b"
    r"|[\w/-]+\.(?:toml|jsonl|html|py|pub|json)\b|\.html|\.png|server__tool|\$?[A-Z]+_[A-Z_]+"
    r"|[a-z_.]+=\S*[\w\]'\"]|\"python my_agent\.py\")(?![`\w])"
)


def _between(text: str, lines: list[str]) -> str:
    before, _, rest = text.partition(_BEGIN)
    return "\n".join([f"{before}{_BEGIN}\n", *lines, f"\n{_END}{rest.partition(_END)[2]}"])


def _options(command: Any) -> Iterator[tuple[str, str]]:
    """Yield the options of a command, arguments first: their names, and what they do, in Markdown."""
    for parameter in sorted(command.params, key=lambda one: one.param_type_name != "argument"):
        names = [
            name for name in [*parameter.opts, *parameter.secondary_opts] if name != "--help" and not parameter.hidden
        ]
        if parameter.param_type_name == "argument":
            names = [parameter.metavar or parameter.name.upper()]
        if names:
            yield ", ".join(f"`{name}`" for name in names), _help(parameter)


def _help(parameter: Any) -> str:
    said = re.sub(r"docs/(\w+\.md)", r"[\1](\1)", _CODE.sub(r"`\1`", _line(parameter.help).replace("|", "\\|")))
    annotation = parameter.type_descriptor.annotation
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, EnumType)]
    if choices := [choice for kind in kinds for choice in kind]:
        said += f" One of {', '.join(f'`{_plain(choice)}`' for choice in choices)}."
    if "Default: " not in said and not any(parameter.default is none for none in (None, False)):
        said += f" Default: `{_plain(parameter.default)}`."
    return re.sub(r"Default: ([\w.-]*\w)(?=\.$|\.? One of)", r"Default: `\1`", said)


def _plain(value: Any) -> str:
    return str(getattr(value, "value", value))


PAGES = {
    "api.md": api_page,
    "configuration.md": page,
    "defaults.md": defaults_page,
    "commands.md": commands_page,
    "plugins.md": plugins_page,
}
"""Pages that this program writes, or parts of: the function that returns the whole page."""


if __name__ == "__main__":
    for name, text in PAGES.items():
        (DOCS / name).write_text(text(), encoding="utf-8")
