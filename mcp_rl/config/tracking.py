"""Settings of `[tracking]`: the data that a run gives to its trackers."""

from pydantic import Field

from mcp_rl.config.section import Section


class TrackingConfig(Section):
    """Data for the trackers, such as TensorBoard or MLflow."""

    texts: bool = False
    """Give trackers the texts of episodes: tasks, messages, arguments, results. Off by default, since some trackers
    send everything to a service; they then get names, numbers and times."""
    episodes: int = Field(default=8, ge=0)
    """Number of episodes of each step and evaluation that trackers get, spread over the tasks; `otlp` gets all."""
