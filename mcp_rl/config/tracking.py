"""The settings of what trackers receive."""

from mcp_rl.config.section import Section


class TrackingConfig(Section):
    """The trackers."""

    texts: bool = False
    """Give trackers texts too: tasks, messages, arguments, results. Without it they get names, numbers and times, since
    some send everything to a service."""
