"""Headlines: posts without a server, and the reward of good and bad headlines."""

import pytest

from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.rewards.verifier import verify
from mcp_rl.scenario import McpScenario, ServerGroup, Verifier
from mcp_rl.trajectory import StopReason, Trajectory

POST = "Carla has released Quartz 2.1, a build tool in Rust. It uses half the memory. The code is open."


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins()


def posts(plugins: Plugins, count: int, seed: int = 0) -> list[McpScenario]:
    server = plugins.servers["none"]
    recipe = Recipe(count, seed)
    return list(plugins.scenario_sources["headlines"](None, server=server, params=server.params(), recipe=recipe))


def scored(plugins: Plugins, said: str | None, post: str = POST) -> Trajectory:
    scenario = McpScenario(
        task_description=f"Write a headline for this post.\n\n{post}",
        server_params=ServerGroup(servers={}),
        verifier=Verifier(kind="headline"),
    )
    played = Trajectory(
        scenario_id=scenario.id,
        messages=[] if said is None else [{"role": "assistant", "content": said}],
        stop_reason=StopReason.MAX_TURNS if said is None else StopReason.ANSWERED,
    )
    verify(played, scenario, plugins.verifiers)
    return played


@pytest.mark.parametrize(
    "said", ["Quartz 2.1, a build tool in Rust", "Quartz 2.1 uses half the memory", "Carla has released Quartz"]
)
def test_a_plain_line_of_the_post_is_a_headline(plugins: Plugins, said: str) -> None:
    assert scored(plugins, said).success


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (None, "There is no headline"),
        ("...", "There is no headline"),
        ("Quartz 2.1", "length"),
        (POST, "length"),
        ("Quartz 2.1, a build tool in Python", "words of the post"),
        ("Quartz 2, a build tool in Rust", "words of the post"),
        ("Quartz Quartz Quartz Quartz 2.1", "words of the post"),
        ("memory Quartz open Rust code half released", "phrases of the post"),
        ("Quartz 2.1, a build tool in Rust!", "plain line"),
        ("Quartz 2.1, a build tool in Rust.", "plain line"),
        ("**Quartz 2.1, a build tool in Rust**", "plain line"),
        ("QUARTZ 2.1, A BUILD TOOL IN RUST", "plain line"),
        ("Shocking: Quartz 2.1, a build tool", "plain line"),
        ("It uses half the memory", "names it"),
    ],
)
def test_each_thing_that_is_wrong_is_named_and_costs(plugins: Plugins, said: str | None, wrong: str) -> None:
    played = scored(plugins, said)
    assert wrong in played.explanation and played.reward is not None and played.reward < 1 and not played.success


def test_posts_are_made_up_from_the_seed(plugins: Plugins) -> None:
    made = posts(plugins, 300)
    assert made == posts(plugins, 300) != posts(plugins, 300, seed=1)
    for scenario in made:
        post = scenario.task_description.partition("\n\n")[2]
        assert scored(plugins, scenario.reference_answer, post).success, (scenario.reference_answer, post)
    assert len({s.task_description for s in made}) == 300 and {s.max_turns for s in made} == {1}
