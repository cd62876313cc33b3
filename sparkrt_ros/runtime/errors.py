"""Every error this project raises on purpose.

One root, so that a caller can catch all of them at once. Each error states where it happened,
what was found, what was expected and what to do about it; leaves exist where a caller has a
reason to treat one kind differently.
"""

from __future__ import annotations


class SparkRTError(Exception):
    """Root of all deliberate errors.

    ``where`` names the file, topic, parameter or key; ``found`` and ``expected`` are what was
    there and what was needed; ``remedy`` is what the user can do.
    """

    def __init__(
        self,
        where: str,
        *,
        found: str,
        expected: str,
        remedy: str | None = None,
    ) -> None:
        self.where = where
        self.found = found
        self.expected = expected
        self.remedy = remedy
        text = f'{where}: found {found}; expected {expected}'
        super().__init__(f'{text}; remedy: {remedy}' if remedy else text)


class CheckpointError(SparkRTError):
    """A policy folder is missing something, damaged, or of an unknown kind."""


class ContractError(SparkRTError):
    """A robot contract is malformed, or does not fit the policy."""


class ObservationError(SparkRTError):
    """An observation does not have what the policy needs."""


class StaleObservation(ObservationError):
    """A stream is missing or older than its limit, so no snapshot can be taken."""


class MessageError(SparkRTError):
    """A message cannot be turned into an array (encoding, size, damage, names)."""


class ActionError(SparkRTError):
    """An action is non-finite, mis-sized or outside what may leave the node."""


class BackendError(SparkRTError):
    """An execution backend cannot serve here, or broke its contract."""


class ConfigError(SparkRTError):
    """A parameter or option has the wrong type or an impossible value."""
