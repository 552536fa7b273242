"""Write the README.md of an export: the model, its evaluation, and how to load it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.config import TINY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from huggingface_hub import EvalResult

    from mcp_rl.evaluation.measure import Measure
    from mcp_rl.runs.export.proof import Proof
    from mcp_rl.runs.export.source import ExportSource

BASE_FOLDER = "base"
"""Folder inside an adapter's export that holds the base, where the base has no name on the hub."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM has kernels for."""


@dataclass(frozen=True)
class Contents:
    """The files of an export, as its card describes them."""

    format: str
    base_in_folder: bool = False
    dtype: str | None = None
    rank: int | None = None
    gguf: str | None = None
    """Name of the GGUF file."""
    ollama_name: str | None = None
    has_tools: bool = False
    """True if tools.json holds the schemas that the model saw in training."""
    has_system_prompt: bool = False
    parser: str = "hermes"
    """The name of vLLM's parser of the model's tool calls."""
    notes: Sequence[str] = ()
    """Notes for a person, one sentence each."""


def model_card(source: ExportSource, proof: Proof, contents: Contents) -> str:
    """Return the whole card: Markdown with the Hub's header."""
    sections = [_header(source, proof, contents), f"# {source.label}\n", _about(source, proof, contents)]
    sections += ["## Evaluation\n", _evaluation(source, proof)]
    sections += ["## How to use it\n", _usage(source, contents)]
    if proof.tools:
        sections += ["## Intended use\n", _intended(proof)]
    if rows := list(_provenance(source, proof)):
        sections += ["## Origin\n", _table(("", ""), rows)]
    if contents.notes:
        sections += ["## Notes\n", "".join(f"- {note}\n" for note in contents.notes)]
    return "\n".join(sections)


def _header(source: ExportSource, proof: Proof, contents: Contents) -> str:
    from huggingface_hub import ModelCardData

    adapter, results = contents.format == "adapter", _results(proof)
    about = ModelCardData(
        base_model=source.base_called,
        license=source.base_license,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=[*(["lora"] if adapter else []), "grpo" if proof.how == "GRPO" else "sft", "mcp", "tool-use"],
        model_name=source.label if results else None,
        eval_results=results or None,
    )
    return f"---\n{about.to_yaml()}\n---\n"


def _results(proof: Proof) -> list[EvalResult]:
    """Return the evaluation as the hub's `model-index` holds it, with intervals and the base's results in `args`."""
    from huggingface_hub import EvalResult

    if proof.after is None or not proof.server:
        return []
    of: dict[str, Any] = {
        "task_type": "text-generation",
        "task_name": "Calling the tools of an MCP server",
        "dataset_type": proof.server,
        "dataset_name": f"{proof.val_scenarios} held-out scenarios of {proof.server}",
        "dataset_split": "validation",
    }
    found = []
    for kind in ("greedy", "sampled"):
        before: Measure | None = getattr(proof.before, kind, None)
        after: Measure | None = getattr(proof.after, kind, None)
        if after is None:
            continue
        if after.success is not None and after.ci95 is not None:
            args: dict[str, Any] = {
                "episodes": after.rollouts,
                "ci95": [round(end, 4) for end in after.ci95],
                **({"before_training": round(before.success, 4)} if before and before.success is not None else {}),
            }
            found.append(("success_rate", f"success, {kind}", after.success, args))
        if k := max((k for k in after.pass_at if k > 1), default=None):
            ends = after.pass_at_ci95.get(k)
            args = {"episodes": after.rollouts, **({"ci95": [round(end, 4) for end in ends]} if ends else {})}
            found.append((f"pass@{k}", f"pass@{k}", after.pass_at[k], args))
    return [
        EvalResult(**of, metric_type=kind, metric_name=name, metric_value=round(value, 4), metric_args=args)
        for kind, name, value, args in found
    ]


def _base_name(source: ExportSource) -> str:
    return f"`{source.base_called or (TINY if source.base_model == TINY else 'a local model')}`"


def _about(source: ExportSource, proof: Proof, contents: Contents) -> str:
    base = _base_name(source)
    what = {
        "adapter": f"A LoRA adapter of {base}",
        "merged": f"A whole model: {base} with the training merged into its weights",
        "gguf": f"A GGUF file for llama.cpp: {base} with the training merged into its weights",
        "ollama": f"A model for Ollama: {base} with the training merged into its weights",
    }[contents.format]
    if source.kind == "base":
        return f"The model {base}, untrained.\n"
    how = f"trained with {proof.how}"
    if proof.server:
        how += f" on the tools of the MCP server `{proof.server}`"
    return f"{what}, {how}, {source.step} steps.\n"


def _evaluation(source: ExportSource, proof: Proof) -> str:
    if proof.after is None and proof.before is None:
        return "It was not evaluated before the export.\n"
    if proof.after is None and source.step:
        told = f"`mcp-rl evaluate --server {proof.server} --model {source.label}` evaluates it"
        return f"This step was not evaluated ({told}); these figures are its base's.\n\n" + _measures(proof)
    return (
        f"On {proof.val_scenarios} held-out scenarios of `{proof.server}`; in brackets the 95 % interval: the range of "
        "results to expect on other scenarios of the same kind.\n\n" + _measures(proof) + "\n" + _by_tool(proof)
    )


def _measures(proof: Proof) -> str:
    before, after = proof.before, proof.after
    rows = []
    for kind in ("greedy", "sampled"):
        first: Measure | None = getattr(before, kind, None)
        last: Measure | None = getattr(after, kind, None)
        shown = last or first
        if shown is None:
            continue
        rows.append((f"success, {kind}", _share(first), _share(last)))
        if k := max((k for k in shown.pass_at if k > 1), default=None):
            rows.append((f"pass@{k}", _pass_at(first, k), _pass_at(last, k)))
        rows.append((f"episodes, {kind}", _count(first), _count(last)))
    return _table(("", "before", f"after step {proof.step}"), rows)


def _by_tool(proof: Proof) -> str:
    assert proof.after is not None
    before = proof.before.by_tool if proof.before else {}
    rows = [
        (f"`{tool}`", f"{found['scenarios']:.0f}", _tool_share(before.get(tool)), _tool_share(found))
        for tool, found in proof.after.by_tool.items()
    ]
    return _table(("tool", "scenarios", "before", "after"), rows) if rows else ""


def _tool_share(found: Mapping[str, float] | None) -> str:
    return _with_interval(found["success"], (found["low"], found["high"])) if found else "-"


def _share(measure: Measure | None) -> str:
    if measure is None:
        return "-"
    if measure.success is None or measure.ci95 is None:
        return f"reward {measure.reward:.3f}" if measure.reward is not None else "-"
    return _with_interval(measure.success, measure.ci95)


def _pass_at(measure: Measure | None, k: int) -> str:
    if measure is None or k not in measure.pass_at:
        return "-"
    return _with_interval(measure.pass_at[k], measure.pass_at_ci95.get(k))


def _with_interval(value: float, ends: tuple[float, float] | None) -> str:
    return f"{value:.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")


def _count(measure: Measure | None) -> str:
    return "-" if measure is None else str(measure.rollouts)


def _intended(proof: Proof) -> str:
    tools = ", ".join(f"`{tool}`" for tool in proof.tools)
    return (
        f"Calling the tools of `{proof.server}`: {tools}. It was trained on requests for these tools; on other "
        "tools expect its base's results or worse, and measure it.\n"
    )


def _usage(source: ExportSource, contents: Contents) -> str:
    write = {"adapter": _use_adapter, "merged": _use_merged, "gguf": _use_gguf, "ollama": _use_ollama}[contents.format]
    return write(source, contents) + _seen(contents)


def _seen(contents: Contents) -> str:
    """Return the sentences on the files that hold what the model saw in training."""
    if not contents.has_tools:
        return ""
    said = "\n`tools.json` holds the tools as the model saw them in training, as OpenAI's function schemas"
    return f"{said}, and `system_prompt.txt` the system prompt.\n" if contents.has_system_prompt else f"{said}.\n"


def _python(lines: Sequence[str], contents: Contents) -> str:
    tools = 'json.load(open("tools.json"))' if contents.has_tools else "[...]  # OpenAI's function schemas"
    system = '{"role": "system", "content": open("system_prompt.txt").read()}, ' if contents.has_system_prompt else ""
    ask = [
        'tokenizer = AutoTokenizer.from_pretrained(".")',
        "",
        f"tools = {tools}",
        f'messages = [{system}{{"role": "user", "content": "..."}}]',
        "inputs = tokenizer.apply_chat_template(",
        '    messages, tools=tools, add_generation_prompt=True, return_tensors="pt", return_dict=True',
        ")",
        "output = model.generate(**inputs, max_new_tokens=256, do_sample=False)",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :]))  # <tool_call>{"name": ...}</tool_call>',
    ]
    first = ["import json", ""] if contents.has_tools else []
    return "```python\n" + "\n".join([*first, *lines, *ask]) + "\n```\n"


def _use_adapter(source: ExportSource, contents: Contents) -> str:
    base = BASE_FOLDER if contents.base_in_folder else source.base_called
    beside = "The base lies beside the adapter, in `base/`. " if contents.base_in_folder else ""
    rank = next((rank for rank in _RANKS if contents.rank is not None and rank >= contents.rank), 64)
    revision = f', revision="{source.revision}"' if source.revision and not contents.base_in_folder else ""
    pinned = f" --revision {source.revision}" if revision else ""
    serve = (
        f"vllm serve {base}{pinned} --enable-lora --max-lora-rank {rank} --lora-modules {source.slug}=. "
        f"{_parser(contents)}"
    )
    return (
        f"{beside}In this folder:\n\n"
        + _python(
            [
                "from peft import PeftModel",
                "from transformers import AutoModelForCausalLM, AutoTokenizer",
                "",
                f'base = AutoModelForCausalLM.from_pretrained("{base}"{revision})',
                'model = PeftModel.from_pretrained(base, ".")',
            ],
            contents,
        )
        + f"\nWith vLLM, which serves it as `{source.slug}`:\n\n```\n{serve}\n```\n"
    )


def _parser(contents: Contents) -> str:
    return f"--enable-auto-tool-choice --tool-call-parser {contents.parser}"


def _use_merged(source: ExportSource, contents: Contents) -> str:
    return (
        "In this folder:\n\n"
        + _python(
            [
                "from transformers import AutoModelForCausalLM, AutoTokenizer",
                "",
                'model = AutoModelForCausalLM.from_pretrained(".", dtype="auto")',
            ],
            contents,
        )
        + "\nWith vLLM:\n\n```\n"
        + f"vllm serve . --served-model-name {source.slug} {_parser(contents)}\n```\n"
    )


def _use_gguf(source: ExportSource, contents: Contents) -> str:
    return (
        "With llama.cpp, whose server reads tool calls with the chat template in the file:\n\n```\n"
        f"llama-server -m {contents.gguf} --jinja\n```\n"
    )


def _use_ollama(source: ExportSource, contents: Contents) -> str:
    return (
        f"In this folder:\n\n```\nollama create {contents.ollama_name} -f Modelfile\n"
        f"ollama run {contents.ollama_name}\n```\n\n"
        "Pass tools in Ollama's API (`tools` of `/api/chat`) or in its OpenAI-compatible one. Ollama writes "
        "tool schemas without spaces, in an order of its own; the model was trained on the server's order.\n"
    )


def _provenance(source: ExportSource, proof: Proof) -> Iterator[tuple[str, str]]:
    yield "base", _base_name(source)
    if source.revision:
        yield "revision of the base", f"`{source.revision}`"
    yield "license of the base", source.base_license or "unknown here: see the base's own page"
    if source.quantisation:
        yield "base during training", source.quantisation
    if proof.server:
        yield "server", f"`{proof.server}`"
    if proof.schema_hash:
        yield "hash of its tools' schemas", f"`{proof.schema_hash}`"
    if proof.train_scenarios:
        yield "scenarios", f"{proof.train_scenarios} for training, {proof.val_scenarios} held out"
    if source.step:
        yield "steps", str(source.step)
    if proof.seed is not None:
        yield "seed", str(proof.seed)
    for name, value in proof.totals.items():
        yield name.replace("_", " "), f"{value:,}"
    for name, value in proof.settings.items():
        yield f"`{name}`", str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)
