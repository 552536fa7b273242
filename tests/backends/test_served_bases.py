"""vLLM loads the base that a policy was trained on; a base that it cannot load is refused before anything starts,
and so is a server that runs already and is not the one that is needed."""

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.backends.plan.wishes import check_wishes
from mcp_rl.backends.samplers.opened import check_served, opened_models, server_for
from mcp_rl.config import TINY, EngineConfig, PlacementConfig, RunConfig
from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.run import prepare as prepare_evaluation
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.vllm import installed
from mcp_rl.runs.serve import prepare as prepare_serving
from mcp_rl.tiny import weights_path

VLLM = EngineConfig(kind="vllm", python=Path(sys.executable))


@dataclass(frozen=True)
class Trained:
    """A policy, as `evaluation.models` finds it."""

    label: str
    name: str
    checkpoint: Path | None
    place: Path | None
    step: int = 3


def trained(folder: Path, *, adapter: bool = True, base: str = TINY, **loaded: Any) -> Trained:
    """Make a run whose base was loaded so, and return its newest checkpoint."""
    checkpoint = folder / "checkpoints" / "0003"
    checkpoint.mkdir(parents=True)
    about = {"loaded": {"base_model": base, "model_name": base, "quantisation": "none", "revision": None, **loaded}}
    (folder / "model.json").write_text(json.dumps(about))
    if adapter:
        (checkpoint / "adapter_config.json").write_text(json.dumps({"r": 4, "rank_pattern": {"q_proj": 24}}))
    return Trained(folder.name, base, checkpoint, checkpoint)


def test_serving_loads_the_base_of_the_training(tmp_path: Path) -> None:
    plain = server_for(trained(tmp_path / "plain"))
    assert (plain.model, plain.location, plain.quantisation) == (TINY, str(weights_path()), "none")
    instead = trained(tmp_path / "instead", model_name="org/other", revision="c0ffee", quantisation="4-bit")
    found = server_for(instead)
    assert (found.model, found.revision, found.quantisation) == ("org/other", "c0ffee", "4-bit")
    untrained = Trained("instead@0", TINY, None, tmp_path / "instead", step=0)
    assert server_for(untrained) == found
    whole = trained(tmp_path / "whole", adapter=False, model_name="org/other", quantisation="4-bit")
    assert (server_for(whole).model, server_for(whole).quantisation) == (str(whole.checkpoint), "none")


@pytest.mark.parametrize(
    ("loaded", "sentence"),
    [
        ({"model_name": "org/other"}, "plain and other have two"),
        ({"revision": "c0ffee"}, "not trained on one revision of it"),
        ({"quantisation": "4-bit"}, "not trained on it in one precision"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "not trained on it loaded in one way"),
    ],
)
def test_policies_of_two_bases_are_not_served_together(loaded: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    both = [trained(tmp_path / "plain", base="org/base"), trained(tmp_path / "other", base="org/base", **loaded)]
    with pytest.raises(ConfigError, match=sentence):
        check_served(both, VLLM, PlacementConfig())


@pytest.mark.parametrize(
    ("loaded", "how"),
    [
        ({"quantisation": "8-bit"}, "in 8 bits"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "with scaled positions"),
        ({"resize_model_vocab": 2048}, "with another vocabulary"),
    ],
)
def test_a_base_that_vllm_would_load_otherwise_is_refused(
    loaded: dict[str, Any], how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=f"was trained on {TINY} loaded {how}.*: add --engine local"):
        check_served([trained(tmp_path / "run", **loaded)], VLLM, PlacementConfig())
    run = tmp_path / "default" / "models" / "run"
    trained(run, **loaded)
    config = RunConfig(server=("any",), name="run", output_dir=tmp_path, engine=EngineConfig(kind="vllm"))
    monkeypatch.setattr(installed, "find_vllm", lambda python: None)
    with pytest.raises(ConfigError, match=f"The base is loaded {how}.*, but vLLM would load it differently"):
        check_wishes(config)


async def test_our_engine_samples_scaled_and_plain_bases_together(
    tmp_path: Path,
) -> None:
    trained(tmp_path / "run", rope_scaling={"rope_type": "linear", "factor": 2.0})
    scaled = Trained("run@0", TINY, None, tmp_path / "run", step=0)
    both = [scaled, replace(scaled, label="again"), Trained(TINY, TINY, None, None, step=0)]
    local = EngineConfig(kind="local", max_context=64)
    async with opened_models(both, local, PlacementConfig(), tmp_path, print) as opened:
        logprobs = []
        for engine, _ in opened.models:
            async with engine.episode(seed=0) as episode:
                logprobs.append((await episode.generate(range(20, 40), Sampling(temperature=0, max_tokens=1))).logprobs)
    assert logprobs[0] == logprobs[1] and abs(logprobs[0][0] - logprobs[2][0]) > 1e-4


class Somebody(BaseHTTPRequestHandler):
    """Serve HTTP like a server that is not vLLM, or like one of another model."""

    models: bytes

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.models if self.path == "/v1/models" else b"{}")

    def do_POST(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Somebody) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


OTHER_BASE = {"data": [{"id": "org/other", "owned_by": "vllm", "root": "org/other", "max_model_len": 4096}]}
SHORT = {"data": [{"id": TINY, "owned_by": "vllm", "root": str(weights_path()), "max_model_len": 64}]}
OLLAMA = {"data": [{"id": "llama3", "owned_by": "library"}]}


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (b"<html>hello</html>", "is not a vLLM server: it answers /v1/models with 200 '<html>hello</html>'"),
        (b'{"data": ["m"]}', "is not a vLLM server: it answers"),
        (json.dumps(OLLAMA).encode(), "is not a vLLM server: its model is owned by 'library'"),
        (json.dumps(OTHER_BASE).encode(), "serves org/other, but the run's base model is"),
        (json.dumps(SHORT).encode(), "takes 64 tokens at most, but an episode may have 512"),
    ],
)
def test_a_wrong_server_is_refused_before_anything_starts(
    models: bytes, sentence: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Somebody, "models", models, raising=False)
    engine = EngineConfig(url=url, max_context=512)
    with pytest.raises(ConfigError) as train:
        check_wishes(RunConfig(server=("mcp_calculator",), engine=engine))
    words = (f"engine.url={url}", "engine.max_context=512")
    with pytest.raises(ConfigError) as serve:
        prepare_serving([TINY, *words], project=tmp_path)
    with pytest.raises(ConfigError) as evaluate:
        prepare_evaluation([TINY], overrides=words, options={"server": ("mcp_calculator",)})
    assert all(sentence in str(refused.value) for refused in (train, serve, evaluate))
    assert list(tmp_path.iterdir()) == []
