"""The meeting of ranks, and rank 0's handling of late, lost and strange processes."""

import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import anyio
import pytest

from mcp_rl.backends.hosts import LocalSettings
from mcp_rl.backends.processes import distributed, meeting
from mcp_rl.backends.processes.distributed import DistributedLearner
from mcp_rl.backends.processes.follower import _Follower
from mcp_rl.backends.processes.meeting import Meeting, come, environment_store
from mcp_rl.backends.processes.rank import Failure
from mcp_rl.errors import ConfigError, EngineStop


@pytest.fixture
def settings(tmp_path: Path) -> LocalSettings:
    return LocalSettings(base_model="mcp-rl/tiny", run=tmp_path, title="t/t")


def leading(settings: LocalSettings, *answers: Callable[[Connection], None]) -> DistributedLearner:
    """Make rank 0 and a thread for each other rank; `answer` gets the connection after a request."""
    learner = DistributedLearner(settings, 1 + len(answers), None)
    for rank, answer in enumerate(answers, 1):
        ours, theirs = Pipe()
        learner._others[rank] = ours
        threading.Thread(target=lambda end=theirs, say=answer: (end.recv(), say(end)), daemon=True).start()
    return learner


def after(seconds: float, said: Failure | None = None) -> Callable[[Connection], None]:
    def answer(connection: Connection) -> None:
        time.sleep(seconds)
        with suppress(OSError):  # nobody waits any more
            connection.send(said)

    return answer


async def test_a_learner_that_is_slower_than_the_first_is_waited_for(
    settings: LocalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "_ANSWER_SECONDS", 0.1)
    learner = leading(settings, after(1.0), after(0.0))
    assert await learner._together("load", own=lambda: "loaded") == "loaded"
    assert learner._over is None


async def test_a_silent_rank_is_named_and_ends_the_request(
    settings: LocalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "SILENCE_SECONDS", 0.3)
    learner = leading(settings, after(0.0), after(60.0))
    with pytest.raises(EngineStop, match=r"Learner 2 \(of 0 to 2\) said nothing for 0 s after the first was done"):
        await learner._together("load", own=lambda: "loaded")
    with pytest.raises(EngineStop, match="cannot go on together: Learner 2"):
        await learner._together("agree", own=lambda: None)


@pytest.mark.parametrize("own_fails", [True, False])
async def test_after_a_failure_other_ranks_get_little_time(
    settings: LocalSettings, monkeypatch: pytest.MonkeyPatch, own_fails: bool
) -> None:
    monkeypatch.setattr(distributed, "_ANSWER_SECONDS", 0.1)
    said = after(0.0) if own_fails else after(0.0, Failure("ValueError", "no layers", ours=False))
    learner = leading(settings, said, after(60.0))

    def own() -> None:
        if own_fails:
            raise ConfigError("no such base")

    kind, words = (
        (ConfigError, "no such base")
        if own_fails
        else (EngineStop, r"Learner 1 \(of 0 to 2\) failed .* with ValueError: no layers")
    )
    with anyio.fail_after(30), pytest.raises(kind, match=words):
        await learner._together("load", own=own)


def joined(place: Meeting, rank: int) -> threading.Thread:
    thread = threading.Thread(target=come, args=(place.invitation, rank), daemon=True)
    thread.start()
    return thread


def test_strangers_are_refused_and_key_holders_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_GREETING_SECONDS", 1.0)
    place = Meeting(3)
    try:
        address, key = json.loads(place.invitation)
        strangers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for stranger in strangers:
            stranger.connect(address)
        strangers[0].close()  # the second sends noise, and the third nothing at all
        strangers[1].sendall(b"\xff" * 64)
        with pytest.raises(EngineStop, match="Learner 1 cannot reach learner 0"):
            wrong = json.dumps([address, "00" * (len(key) // 2)])
            waiting = threading.Thread(target=come, args=(wrong, 1), daemon=True)
            threading.excepthook, kept = lambda given: None, threading.excepthook
            try:
                waiting.start()
                joined(place, 7)  # it knows the key, but has no rank of ours
                joined(place, 1)
                joined(place, 2)
                found = place.wait(60, lambda: None)
                come(json.dumps([address, key]), 1)
            finally:
                threading.excepthook = kept
        assert sorted(found) == [1, 2]
    finally:
        place.close()
    assert not place.folder.exists()


def test_a_folder_that_others_may_enter_is_no_place_to_meet(tmp_path: Path) -> None:
    """Anyone who can write to torchrun's store could name a socket of theirs."""
    tmp_path.chmod(0o777)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "m"))
    server.listen(1)
    with pytest.raises(EngineStop, match="others may enter"):
        come(json.dumps([str(tmp_path / "m"), "00" * 32]), 1)
    server.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, with a path as short as /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_a_killed_runs_meeting_is_removed_a_used_one_kept(short: Path) -> None:
    lives = Meeting(2)
    if (child := os.fork()) == 0:  # what it holds ends with it
        Meeting(2)
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(short.iterdir())) == 2
    other = Meeting(2)
    assert set(short.iterdir()) == {lives.folder, other.folder}
    lives.close()
    other.close()
    assert list(short.iterdir()) == []


def test_learners_meet_in_tmp_if_a_path_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    place = Meeting(2)
    try:
        assert (place.folder / "meeting").is_socket()
        assert place.folder.stat().st_mode & 0o077 == 0
        assert list(long.iterdir()) == []
    finally:
        place.close()
    assert not place.folder.exists()


def test_a_place_where_learners_cannot_meet_is_a_sentence(short: Path) -> None:
    with pytest.raises(EngineStop, match=r"Learners cannot meet at 192\.0\.2\.1: "):
        Meeting(2, host="192.0.2.1")  # of nobody's machine (RFC 5737)
    assert list(short.iterdir()) == []


async def test_waiting_for_learners_ends_when_it_is_cancelled(
    settings: LocalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(self: DistributedLearner, invitation: str) -> None:
        """Nobody comes."""

    monkeypatch.setattr(DistributedLearner, "_start", start)
    learner = DistributedLearner(settings, 2, None)
    began = time.monotonic()
    with anyio.move_on_after(0.5):
        await learner.open()
    await learner.close()
    assert time.monotonic() - began < 60


def test_a_follower_on_another_kind_of_device_is_refused(settings: LocalSettings) -> None:
    place = Meeting(2)
    found: list[Connection] = []
    waiting = threading.Thread(target=lambda: found.extend(place.wait(60, lambda: None).values()))
    waiting.start()
    follower = _Follower(place.invitation, 1)
    waiting.join()
    serving = threading.Thread(target=follower.serve)
    serving.start()
    (connection,) = found
    connection.send(("prepare", settings.model_dump_json(), True, "cuda"))
    failure = connection.recv()
    assert failure.ours and "Learner 1 would learn on cpu, and learner 0 on cuda" in failure.sentence
    connection.send(("learn", [], None))
    assert "asked for 'learn', which it cannot do now" in connection.recv().sentence
    connection.send(("end",))
    serving.join(60)
    assert not serving.is_alive()
    place.close()


def test_a_store_of_torchrun_that_is_gone_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun was killed, and nobody waits two days for it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = str(taken.getsockname()[1])
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": "2"}
        for name, value in {**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(meeting, "_CONNECT_WAIT", timedelta(seconds=1))
        with pytest.raises(EngineStop, match="The store of torchrun cannot be reached"):
            environment_store()
        with meeting.dismissing():
            """It still ends without an error."""
