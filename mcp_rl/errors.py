"""The package's errors, one class for each kind of cause.

Each error is one sentence for the user: what was tried, what happened, what to do next. `exit_code` is the command's
exit code: 2 if the user can mend the cause, else 1.
"""


class McpRlError(Exception):
    """Base class of all errors that this package raises on purpose."""

    exit_code = 1


class UserError(McpRlError):
    """A mistake in the command, a file or the machine that the user can mend."""

    exit_code = 2


class ConfigError(UserError):
    """An unknown key, a value out of range, two settings that contradict each other."""


class PluginError(UserError):
    """A plugin that cannot be used, or a name that no plugin offers."""


class ClusterError(UserError):
    """A cluster that cannot be used as it is: no such address, no room, other versions, a full object store."""


class ScenarioError(UserError):
    """A scenario or a scenarios file that cannot be used."""


class RunDirectoryError(UserError):
    """A run directory that is locked, not writable, or made for another server, model or schema."""


class CheckpointError(UserError):
    """A checkpoint that is missing, incomplete or does not match."""


class ServerError(UserError):
    """A tool server that cannot be used at all: does not start, never answers, lists no tools."""


class ServerFault(McpRlError):
    """A failure of a live tool server during a call. A rollout records it as a fault, never as a reward of 0.

    `delivered` is False only if the request certainly never reached the server, so that a retry is safe.
    """

    def __init__(self, message: str, *, delivered: bool | None = None) -> None:
        super().__init__(message)
        self.delivered = delivered

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_fault, (self.args[0], self.delivered)


def _rebuild_fault(message: str, delivered: bool | None) -> ServerFault:
    return ServerFault(message, delivered=delivered)


class RunStop(McpRlError):
    """A condition that cannot pass: the run ends, keeps its last whole step, and blames no rollout."""


class SchemaChanged(RunStop):
    """The server's tools differ from those that the run began with."""

    exit_code = 2


class ElicitationError(RunStop):
    """A plugin's function that failed to answer a server's request for input."""

    exit_code = 2


class LoginNeeded(RunStop):
    """A tool server wants a login that is missing, expired or refused."""

    exit_code = 2


class CassetteMiss(RunStop):
    """A call that is not in the recording."""

    exit_code = 2


class CassetteError(RunStop):
    """A recording that cannot continue: its file cannot be written, or the server has changed."""

    exit_code = 2


class EngineError(McpRlError):
    """A failure of the inference engine."""


class EngineStop(EngineError, RunStop):
    """A sampler or learner that is gone for good: the run ends and keeps its last whole step."""


class PartLost(EngineError):
    """A part of a cluster that is gone or silent; what it did can be done again elsewhere.

    `gone`: it will not come back by itself.
    """

    def __init__(self, message: str, *, gone: bool = False) -> None:
        super().__init__(message)
        self.gone = gone

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_lost, (self.args[0], self.gone)


def _rebuild_lost(message: str, gone: bool) -> PartLost:
    return PartLost(message, gone=gone)


class LearnersLost(EngineStop):
    """The learners of a cluster are gone: the run can go on from its last whole step with new ones."""


class UserStop(EngineError, RunStop):
    """A model that plays users and refuses the key or the request, or whose cost limit is used up."""

    exit_code = 2


class ContextOverflow(EngineError):
    """The next turn does not fit the engine's context; the rollout ends with StopReason.CONTEXT_FULL."""


class VerifierError(McpRlError):
    """A failure of a verifier, which leaves a rollout without a reward."""


class JudgeError(McpRlError):
    """A judge without a usable verdict."""


class JudgeDown(JudgeError):
    """A judge that cannot be reached or is overloaded, and may answer later."""


class JudgeStop(JudgeError, RunStop):
    """A judge that will give no more verdicts: the run ends and keeps its last whole step."""


class JudgeBarred(JudgeStop):
    """A judge that refuses the key or the model, or whose cost limit is used up."""

    exit_code = 2


class HubError(McpRlError):
    """A failure of the Hugging Face hub, or of the way to it, that may be gone the next time."""


class CanaryError(RunStop):
    """A failed check of the training loop; the run stops before it learns from wrong data."""


class NothingLearned(UserWarning):
    """A step that trained on no token. Runs of `mcp-rl train` say so themselves, and ignore it."""


class NotDelivered(McpRlError):
    """A tracker's service could not be reached, or did not take what it was sent; later it may."""
