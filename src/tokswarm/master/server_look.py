"""How a run looks at the servers behind its targets, as its control and its course see it."""

from collections.abc import Callable
from typing import Protocol

from tokswarm.measure.server_second import ServerSecond


class ServerLook(Protocol):
    """Reads the servers' own metrics; whatever goes wrong with that is its own matter."""

    def find(self) -> list[str]:
        """Look which addresses have metrics; notes on what was found and what was not."""
        ...

    def start(self, on_seconds: Callable[[list[ServerSecond]], None], on_trouble: Callable[[str, str], None]) -> None:
        """Read each second. `on_trouble` hears once of each address that fails, and why."""
        ...

    def stop(self) -> None:
        """End it; may be called again."""
        ...
