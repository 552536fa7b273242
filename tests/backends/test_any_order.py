"""A learner in a child behaves like one in this process, whatever the calls and their order."""

import random
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import psutil
import pytest

from mcp_rl.backends.local import LocalBackend
from mcp_rl.errors import ConfigError, EngineError, EngineStop, McpRlError
from mcp_rl.inference.engine import Sampling
from mcp_rl.trajectory import TrajectoryGroup
from tests.backends.test_child import CONFIG, FILES, learner_of, make_model, play

NOT_COMPARED = ("seconds", "learner_peak_rss_mb")


class Side:
    """A run with its learner in a child, or in this process."""

    def __init__(self, base: str, folder: Path, *, in_process: bool) -> None:
        self.in_process, self.model = in_process, make_model(base, folder)
        self.groups: list[TrajectoryGroup] = []

    async def do(self, call: str, seed: int) -> Any:
        """Return the result of a call; for an error its class and sentence."""
        try:
            return await getattr(self, call)(seed)
        except McpRlError as error:
            return type(error), str(error)

    async def open(self, seed: int) -> Any:
        self.backend = LocalBackend(config=CONFIG, in_process=self.in_process)
        await self.backend.register(self.model)
        return self.backend.step, self.backend.engine.version, dict(self.backend.frontier)

    async def sample(self, seed: int) -> Any:
        self.groups = await play(self.backend.engine, seed)
        return [(t.segments, t.reward) for group in self.groups for t in group]

    async def learn(self, seed: int) -> Any:
        """Learn from the newest groups; those of an older policy, or none, are refused or change nothing."""
        result = await self.backend.train(self.model, self.groups, frontier={"next": seed}, save=False)
        return result.step, {k: v for k, v in result.metrics.items() if not k.endswith(NOT_COMPARED)}

    async def save(self, seed: int) -> Any:
        folder = await self.backend.save(self.model, frontier={"next": seed}, files={"kept": b"%d" % seed})
        return folder.name, [(folder / name).read_bytes() for name in (*FILES, "kept")]

    async def swap(self, seed: int) -> Any:
        assert self.backend._sampler is not None and self.backend._learner is not None
        await self.backend._sampler.take(self.backend._learner, self.backend.step)
        return self.backend.engine.version

    async def close(self, seed: int) -> Any:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.backend.close)
            tasks.start_soon(self.backend.close)
        await self.backend.close()
        return await self.do("learn", seed)

    async def crash(self, seed: int) -> None:
        """Kill the child in the middle of turns; in one process, close the backend instead."""
        if self.in_process:
            await self.backend.close()
            return
        raised: list[EngineError] = []

        async def turns(seed: int) -> None:
            """Sample one turn after the other: a short one may be over before the child is killed."""
            try:
                while True:
                    async with self.backend.engine.episode(seed=seed) as episode:
                        await episode.generate([20, 21, 22], Sampling(max_tokens=500))
            except EngineError as error:
                raised.append(error)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(turns, number)
                await anyio.sleep(0.05)
                learner_of(self.backend).kill()
            assert len(raised) == 3 and all(isinstance(error, EngineStop) for error in raised)
            assert "The learner's process was killed while it sampled, " in str(raised[0])
            assert "Lower engine.max_rows" in str(raised[0]) and "the same command continues" in str(raised[0])
            for call in ("sample", "save", "swap"):
                assert await self.do(call, seed) == (EngineStop, str(raised[0]))
            await self.backend.close()


async def test_a_child_behaves_like_one_process_in_any_order_of_calls(base: str, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    sides = [Side(base, tmp_path / str(here), in_process=here) for here in (True, False)]

    async def both(call: str) -> Any:
        number = draw.randrange(1000)
        ours, childs = [await side.do(call, number) for side in sides]
        assert ours == childs, (seed, call)
        return ours

    calls = [draw.choice(("sample", "learn", "save", "swap")) for _ in range(5)]
    end = draw.choice(("close", "crash"))
    for call in ("open", "sample", "learn", *calls, end, "open", "sample", "learn", "save"):
        found = await both(call)
        if call in ("open", "sample", "save", "swap"):
            assert not isinstance(found[0] if isinstance(found, tuple) else found, type), (seed, call, found)
    assert (await both("close"))[0] is ConfigError


async def test_what_is_closed_while_it_opens_is_closed(base: str, tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    for in_process, moment in ((False, 0.2), (True, 0.0)):
        backend = LocalBackend(config=CONFIG, in_process=in_process)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:

                async def open_it(backend: LocalBackend = backend) -> None:
                    with pytest.raises(McpRlError, match="closed"):
                        await backend.register(make_model(base, tmp_path))

                await backend.choose(make_model(base, tmp_path))
                tasks.start_soon(open_it)
                while backend._learner is None:
                    await anyio.lowlevel.checkpoint()
                await anyio.sleep(moment)
                await backend.close()
        assert set(psutil.Process().children(recursive=True)) <= before
        with pytest.raises(ConfigError):
            _ = backend.engine
