"""Where the files that ship with tokswarm are: in the installed package, or in the checkout it runs from."""

from pathlib import Path

from tokswarm.errors import TokswarmError

_PACKAGE = Path(__file__).parent


def resource_dir(name: str) -> Path:
    """The folder `locustfiles`, `dashboards`, `deploy` or `workers`. TokswarmError when the installation lacks it."""
    for candidate in (_PACKAGE / "data" / name, _PACKAGE.parents[1] / name):
        if candidate.is_dir():
            return candidate
    raise TokswarmError(
        f"the folder {name!r} that ships with tokswarm is not in this installation ({_PACKAGE})",
        hint="install tokswarm again from a wheel or a full checkout",
    )
