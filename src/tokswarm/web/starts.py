"""Starting runs for every page: one door, which remembers what was asked for last."""

from tokswarm.master.run import RunControl, RunInfo, StartRequest


class Starts:
    """Starts runs and keeps the last request that worked, for pages that cannot name a mix."""

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self.last: StartRequest | None = None
        """None: nothing was started from here yet."""

    def start(self, request: StartRequest) -> RunInfo:
        """Start a run; raises what `RunControl.start` raises."""
        info = self._control.start(request)
        self.last = request
        return info
