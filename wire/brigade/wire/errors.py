"""The errors of the program: one class for each kind of reader.

Expected outcomes are verdicts or events, never exceptions.
"""


class BrigadeError(Exception):
    """Any failure that the program foresees."""


class LocalProtocolError(BrigadeError):
    """We broke the protocol: a bug of ours."""


class RemoteProtocolError(BrigadeError):
    """The other party broke the protocol: it ends their session, never us."""


class ConfigError(BrigadeError):
    """A person wrote something that cannot be used: says file, key, what was found and what was expected."""


class PlanError(BrigadeError):
    """No plan can train this model on these nodes, or a given plan is unsound."""


class CheckpointError(BrigadeError):
    """A checkpoint is missing, torn, or of another run."""
