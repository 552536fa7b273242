"""The settings of what trackers receive."""

from pydantic import Field

from mcp_rl.config.section import Section


class TrackingConfig(Section):
    """The trackers."""

    texts: bool = False
    """Give trackers texts too: tasks, messages, arguments, results. Without it they get names, numbers and times, since
    some send everything to a service."""
    episodes: int = Field(default=16, ge=0)
    """Episodes of each step and evaluation that trackers get, a few of each task; `otlp` gets all of them."""
