"""A model and the backends that it may be registered with."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mcp_rl.model import TrainableModel, with_defaults


async def test_a_backend_may_leave_out_the_optional_parts(tmp_path: Path) -> None:
    async def register(model: TrainableModel[None]) -> None: ...

    model = TrainableModel[None]("any", "demo", "some/base", base_path=tmp_path)
    model.path.mkdir(parents=True)
    backend: Any = SimpleNamespace(register=register)
    await model.register(backend)
    assert model.backend is with_defaults(backend) is backend
    await model.backend.begin(model)
    model.backend.protect([3])
    assert (list(await model.backend.choose(model)), list(model.backend.skipped), model.backend.loaded) == ([], [], {})
    assert "loaded" not in json.loads((model.path / "model.json").read_bytes())
