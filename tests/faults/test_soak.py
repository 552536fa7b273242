"""A small soak of `benchmarks/soak.py`, which checks its accounting but not its figures."""

import tempfile
from pathlib import Path

import pytest

from benchmarks.soak import SHARES, Account, soak
from mcp_rl.toolserver.sandbox.obstacle import obstacle


async def test_all_episodes_on_breaking_servers_are_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # restored after the test
    said: list[str] = []
    found = await soak(
        100,
        chance=0.1,
        seed=1,
        bad_start=0,
        folder=tmp_path,
        say=said.append,
        call_seconds=0.8,
        rounds=2,
        sandboxes=obstacle() is None,
    )
    verdict, total = found["verdict"], found["total"]
    assert verdict["every_episode_is_accounted_for"] and verdict["no_call_was_sent_twice"], found
    assert total["asked"] == 100 == total["succeeded"] + total["faulted"]
    assert total["tried"] == 100 + total["refilled"] and total["refilled"] > 0
    left = verdict["left"]
    assert left["processes"] == left["temporary_files"] == left["mounts"] == 0
    assert left["files_beneath_layers"] == left["detached_processes"] == 0
    assert found["after"]["descriptors"] <= found["before"]["descriptors"] + 2
    kinds = 3 * (len(SHARES) if obstacle() is None else len(SHARES) - 1)
    assert len(found["kinds"]) == kinds and all(kind["asked"] for kind in found["kinds"].values())
    assert said


def test_an_account_that_does_not_add_up_is_no_account() -> None:
    assert Account(asked=3, tried=4, succeeded=2, faulted=1, refilled=1, calls=4).balanced
    assert not Account(asked=3, tried=4, succeeded=2, faulted=0, refilled=1, calls=4).balanced, "one is missing"
    assert not Account(asked=3, tried=5, succeeded=3, refilled=1, calls=4).balanced, "a try nobody asked for"
    assert not Account(asked=3, tried=3, succeeded=3, calls=3, sent_twice=1).balanced
    assert not Account(asked=3, tried=3, succeeded=3, calls=4).balanced, "more calls than tries"
