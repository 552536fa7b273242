"""Samples one base model and the policies trained on it, one after another, without a learner."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any, Self

import anyio
from peft.tuners.tuners_utils import BaseTunerLayer

from mcp_rl.backends.base.base_model import load_base
from mcp_rl.backends.samplers.weights import sampled_weights
from mcp_rl.config import UnslothConfig
from mcp_rl.errors import CheckpointError, EngineError
from mcp_rl.inference.chat.chat_format import ChatFormat, served_chat
from mcp_rl.inference.chat.ends import listed_ends
from mcp_rl.inference.local import LocalEngine
from mcp_rl.inference.policy import fingerprint_of
from mcp_rl.learning.disk.adapter_config import load_adapter
from mcp_rl.learning.disk.state import load_weights

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

    from torch import Tensor
    from transformers import PreTrainedModel

    from mcp_rl.inference.low_rank import LowRank


class LocalPolicies:
    """`async with LocalPolicies(base) as policies: await policies.use(folder, 5)`, then sample `policies.engine`.

    Opening raises ConfigError for a base that is not there or has no chat template that can be continued.
    """

    def __init__(
        self,
        base_model: str,
        options: UnslothConfig | None = None,
        *,
        beside: LocalPolicies | None = None,
        gang: bool | None = None,
        max_context: int | None = None,
        max_rows: int = 256,
        chat: Mapping[str, Any] | None = None,
    ) -> None:
        """`options` say how the base is loaded. `beside` are opened policies whose base in memory is shared, so that
        two policies can be sampled at once. The other options are LocalEngine's."""
        self.base_model, self.options = base_model, options or UnslothConfig()
        self._chat_settings = chat
        self._beside, self._gang, self._max_context, self._max_rows = beside, gang, max_context, max_rows

    async def __aenter__(self) -> Self:
        self._base: PreTrainedModel
        self.chat: ChatFormat
        if self._beside is not None:
            self._base, self.chat = self._beside._base, self._beside.chat
        else:
            self._base, tokenizer = await anyio.to_thread.run_sync(load_base, self.base_model, self.options)
            ends = listed_ends(getattr(self._base, "generation_config", None))
            self.chat = served_chat(tokenizer, ends, self._chat_settings)
        engine = LocalEngine(
            self._base,
            stop_token_ids=self.chat.stop_token_ids,
            decode=self.chat.decode,
            max_context=self._max_context,
            max_rows=self._max_rows,
            gang=self._gang,
        )
        self.engine = await engine.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.engine.__aexit__(kind, error, trace)

    async def use(self, adapter: Path | None, version: int) -> None:
        """Sample the base with this adapter, or a whole model of its shape, from now on; None: the base itself.

        Raises CheckpointError if the folder holds nothing that fits the base, and EngineError if the engine samples
        other weights than the loaded ones.
        """
        weights: Mapping[str, Tensor | LowRank] = {}
        if adapter is not None:
            whole = not (adapter / "adapter_config.json").is_file() and (adapter / "config.json").is_file()
            weights = await anyio.to_thread.run_sync(self._whole if whole else self._adapted, adapter)
        await self.engine.load_policy(weights, version)
        if self.engine.version != version or self.engine.fingerprint != fingerprint_of(weights):
            raise EngineError(f"The engine does not sample the policy that was loaded from {adapter or 'the base'}.")

    def _whole(self, folder: Path) -> dict[str, Tensor]:
        """Return every weight of the model in a folder."""
        model = copy.deepcopy(self._base)
        load_weights(model, folder)
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    def _adapted(self, adapter: Path) -> Mapping[str, Tensor | LowRank]:
        """Return the changed weights of every layer that the adapter changes. The base stays as it was."""
        base: Any = self._base
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model = load_adapter(base, adapter)
        except CheckpointError:
            raise
        except Exception as error:  # a stranger's files, in which the library may trip over anything
            _take_out(base)
            raise CheckpointError(self._misfit(adapter, str(error))) from error
        try:
            missing = [str(warning.message) for warning in said if "missing adapter keys" in str(warning.message)]
            if missing:
                raise CheckpointError(self._misfit(adapter, missing[0]))
            return sampled_weights(model)
        finally:
            self._base = model.unload()

    def _misfit(self, adapter: Path, reason: str) -> str:
        lines = reason.strip().splitlines() or ["no reason given"]
        return f"Cannot load the adapter in {adapter} on the base model {self.base_model!r}: {lines[0][:200]}"


def _take_out(base: PreTrainedModel) -> None:
    """Remove the layers of an adapter whose loading failed half-way."""
    for name, layer in list(base.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            base.set_submodule(name, layer.get_base_layer())
