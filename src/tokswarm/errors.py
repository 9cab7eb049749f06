"""The one tree of errors a user can meet, and the exit code each one ends a command with."""


class TokswarmError(Exception):
    """Base of all our errors: the message says what, where and what came; `hint` says what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(TokswarmError):
    """A mix, a setting or a command line that cannot be used."""

    exit_code = 2


class PreflightError(TokswarmError):
    """The endpoint cannot be load-tested as asked; found before any load was sent."""

    exit_code = 2


class FleetError(TokswarmError):
    """The fleet cannot do what was asked: no workers, no answer, or another version."""


class BusyError(TokswarmError):
    """A run is going on; one master drives one run at a time."""


class UnknownRunError(TokswarmError):
    """No run has this id."""


class SinkError(TokswarmError):
    """Records could not be delivered; what is undelivered stays in the record log."""


class LogError(TokswarmError):
    """A record log cannot be read or written."""


class PublishError(TokswarmError):
    """Grafana refused a board, a folder or a data source."""


class ReportError(TokswarmError):
    """A run's folder cannot be turned into a report, or a report cannot be read."""
