"""How learners in several processes meet, and what rank 0 makes of those that are late, lost or strangers."""

import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import anyio
import pytest

from mcp_rl.backends import leader, meeting
from mcp_rl.backends.follower import _Follower
from mcp_rl.backends.hosts import LocalSettings
from mcp_rl.backends.leader import LeadingLearner
from mcp_rl.backends.meeting import Meeting, come, environment_store
from mcp_rl.backends.ranked import Failure
from mcp_rl.errors import ConfigError, EngineStop


@pytest.fixture
def settings(tmp_path: Path) -> LocalSettings:
    return LocalSettings(base_model="mcp-rl/tiny", run=tmp_path, title="t/t")


def leading(settings: LocalSettings, *answers: Callable[[Connection], None]) -> LeadingLearner:
    """Rank 0 and a thread for each other rank, which gets its end of the connection when something is asked."""
    learner = LeadingLearner(settings, 1 + len(answers), None)
    for rank, answer in enumerate(answers, 1):
        ours, theirs = Pipe()
        learner._others[rank] = ours
        threading.Thread(target=lambda end=theirs, say=answer: (end.recv(), say(end)), daemon=True).start()
    return learner


def after(seconds: float, said: Failure | None = None) -> Callable[[Connection], None]:
    def answer(connection: Connection) -> None:
        time.sleep(seconds)
        connection.send(said)

    return answer


async def test_a_learner_that_is_slower_than_the_first_is_waited_for(
    settings: LocalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "_ANSWER_SECONDS", 0.1)
    learner = leading(settings, after(1.0), after(0.0))
    assert await learner._together("load", own=lambda: "loaded") == "loaded"
    assert learner._over is None


async def test_a_learner_that_never_answers_is_named_and_nothing_is_taken_for_done(
    settings: LocalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "SILENCE_SECONDS", 0.3)
    learner = leading(settings, after(0.0), after(60.0))
    with pytest.raises(EngineStop, match=r"Learner 2 \(of 0 to 2\) said nothing for 0 s after the first was done"):
        await learner._together("load", own=lambda: "loaded")
    with pytest.raises(EngineStop, match="cannot go on together: Learner 2"):
        await learner._together("agree", own=lambda: None)


@pytest.mark.parametrize("own_fails", [True, False])
async def test_where_one_has_failed_the_others_are_not_waited_for_long(
    settings: LocalSettings, monkeypatch: pytest.MonkeyPatch, own_fails: bool
) -> None:
    monkeypatch.setattr(leader, "_ANSWER_SECONDS", 0.1)
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


def test_strangers_are_turned_away_and_those_who_know_the_key_still_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_GREETING_SECONDS", 1.0)
    place = Meeting(3)
    try:
        address, key = json.loads(place.invitation)
        strangers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for stranger in strangers:
            stranger.connect(address)
        strangers[0].close()  # the second says what is no message, the third nothing at all
        strangers[1].sendall(b"\xff" * 64)
        with pytest.raises(EngineStop, match="Learner 1 cannot reach learner 0"):
            wrong = json.dumps([address, "00" * (len(key) // 2)])
            waiting = threading.Thread(target=come, args=(wrong, 1), daemon=True)
            threading.excepthook, kept = lambda given: None, threading.excepthook
            try:
                waiting.start()
                joined(place, 7)  # knows the key, and is none of us
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
    """Who can write to torchrun's store could name a socket of their own."""
    tmp_path.chmod(0o777)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "m"))
    server.listen(1)
    with pytest.raises(EngineStop, match="others may enter"):
        come(json.dumps([str(tmp_path / "m"), "00" * 32]), 1)
    server.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; its path is short, as that of /tmp is."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_what_a_killed_run_left_of_its_meeting_is_removed_and_what_is_in_use_is_not(short: Path) -> None:
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


def test_learners_meet_elsewhere_where_a_temporary_folder_has_too_long_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    async def start(self: LeadingLearner, invitation: str) -> None:
        """Nobody comes."""

    monkeypatch.setattr(LeadingLearner, "_start", start)
    learner = LeadingLearner(settings, 2, None)
    began = time.monotonic()
    with anyio.move_on_after(0.5):
        await learner.open()
    await learner.close()
    assert time.monotonic() - began < 60


def test_a_follower_on_another_kind_of_device_says_so_before_anybody_waits(settings: LocalSettings) -> None:
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
            """Ends without an error all the same."""
