"""One tree of errors, one class per boundary crossed.

Each error is one sentence for the person at the terminal: what was tried, what was seen, what to do next.
`exit_code` is what the command returns: 2 where the user can mend it, 1 where the world broke.
"""


class McpRlError(Exception):
    """Root of everything that this package raises on purpose."""

    exit_code = 1


class UserError(McpRlError):
    """Something in the command, a file or the machine that the user can mend."""

    exit_code = 2


class ConfigError(UserError):
    """An unknown key, a value out of range, two settings that contradict each other."""


class PluginError(UserError):
    """A plugin or a name that a plugin should offer."""


class ScenarioError(UserError):
    """A scenario or a scenarios file."""


class RunDirectoryError(UserError):
    """A run directory: locked, made for another server, model or schema, not writable."""


class CheckpointError(UserError):
    """A checkpoint that is missing, incomplete or does not match."""


class ServerError(UserError):
    """A tool server that cannot be used at all: does not start, never answers, lists no tools."""


class ServerFault(McpRlError):
    """A live tool server failed in the middle of a call. A rollout records it as a fault, never as a 0 reward.

    `delivered` is False only where the request surely never reached the server, so that a retry is safe.
    """

    def __init__(self, message: str, *, delivered: bool | None = None) -> None:
        super().__init__(message)
        self.delivered = delivered

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_fault, (self.args[0], self.delivered)


def _rebuild_fault(message: str, delivered: bool | None) -> ServerFault:
    return ServerFault(message, delivered=delivered)


class RunStop(McpRlError):
    """Nothing that comes can be right any more: the run ends, its last whole step is kept, no rollout is blamed."""


class SchemaChanged(RunStop):
    """The server offers other tools than those that the run began with."""

    exit_code = 2


class CassetteMiss(RunStop):
    """A call that the recording does not hold."""

    exit_code = 2


class CassetteError(RunStop):
    """A recording that cannot go on: its file cannot be written, or the server is no longer the one it is of."""

    exit_code = 2


class EngineError(McpRlError):
    """The inference engine failed."""


class EngineStop(EngineError, RunStop):
    """What samples or learns is gone and will not come back: the run ends, and its last whole step is kept."""


class ContextOverflow(EngineError):
    """The next turn does not fit the engine's context; the rollout ends with StopReason.CONTEXT_FULL."""


class VerifierError(McpRlError):
    """A verifier failed, so that nobody knows what a rollout is worth."""


class JudgeError(McpRlError):
    """The judge gave no usable verdict."""


class JudgeDown(JudgeError):
    """The judge cannot be reached or is overloaded; later it may answer."""


class JudgeStop(JudgeError, RunStop):
    """No verdict will come any more: the run ends, and its last whole step is kept."""


class JudgeBarred(JudgeStop):
    """The judge refuses our key or model, or its cost limit is used up."""

    exit_code = 2


class CanaryError(RunStop):
    """A check of the training loop failed; the run stops before it learns from wrong data."""
