"""`mcp-rl verify`."""

import functools
import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcp_rl.cli.groups import with_groups
from mcp_rl.cli.options import Job, Json, PlaceOptions, Plugin, RunName

if TYPE_CHECKING:
    from mcp_rl.runs.verify.run import VerifyRequest


@with_groups
def verify(
    *,
    run: RunName,
    episodes: Annotated[
        int,
        typer.Option(
            help="Held-out episodes of each evaluation in the table to play again on the server, drawn "
            "anew each time; 0 for none.",
            min=0,
        ),
    ] = 4,
    server: Annotated[
        list[str] | None,
        typer.Option(
            help="The run's server, if no plugin offers it by its name; repeat if there were several. "
            "A command in a run's files is never executed."
        ),
    ] = None,
    plugin: Plugin = None,
    sign: Annotated[
        Path | None, typer.Option(help="Sign the run with this private Ed25519 key, such as of ssh-keygen -t ed25519.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Check that this public key (KEY.pub) has signed the run, as it is now.")
    ] = None,
    place: PlaceOptions,
    json: Json = False,
) -> Job:
    """Say what of a run's claim is proven: whole files, computed numbers, episodes played again, a signature.

    Exits with 2 if anything contradicts the claim.
    """
    return functools.partial(_verify, run, place, episodes, server or (), plugin or (), sign, check, as_json=json)


def _verify(
    run: str,
    place: PlaceOptions,
    episodes: int,
    servers: Sequence[str],
    plugins: Sequence[Path],
    sign: Path | None,
    check: Path | None,
    *,
    as_json: bool,
) -> int:
    from mcp_rl.evaluation.page import find_folder
    from mcp_rl.runs.verify.run import VerifyRequest

    folder = find_folder(run, place.output_dir / place.project)
    return _report(VerifyRequest(folder, episodes, servers, sign, check), plugins, as_json=as_json)


def _report(request: "VerifyRequest", plugins: Sequence[Path], *, as_json: bool) -> int:
    from rich.console import Console

    from mcp_rl.evaluation.progress import say
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.run_directory import RunDirectory
    from mcp_rl.system.threads import prepare_torch_threads

    if request.episodes:
        state = RunDirectory(request.folder).state()
        prepare_torch_threads(state.threads, state.update_threads)  # before torch is imported
    import anyio

    from mcp_rl.cli.printing.verification import print_verification
    from mcp_rl.runs.verify.run import verify_run

    console = Console(stderr=as_json)
    found = anyio.run(verify_run, request, load_plugins(map(str, plugins)), functools.partial(say, console=console))
    print_verification(found, console)
    if as_json:
        print(jsonlib.dumps(found.as_json(), ensure_ascii=False), flush=True)
    return 2 if found.contradicted else 0
