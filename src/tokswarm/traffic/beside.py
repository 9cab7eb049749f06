"""Finds the files that a mix names: beside the mix, else among those that ship with tokswarm."""

from pathlib import Path

from tokswarm.errors import ConfigError, TokswarmError
from tokswarm.resources import resource_dir


def find_beside(file: str, mix_dir: Path, *, what: str) -> Path:
    """The path of a file that a mix names. ConfigError says where it was looked for."""
    candidates = [mix_dir / file]
    try:
        shipped = resource_dir("locustfiles")
    except TokswarmError:
        pass  # an installation without them: the mix's own folder is all there is
    else:
        candidates += [shipped / file, shipped / "traces" / file]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    looked = ", ".join(dict.fromkeys(str(candidate) for candidate in candidates))
    raise ConfigError(
        f"there is no {what} {file!r}; looked at {looked}",
        hint=f"give the path relative to the mix, or the name of a {what} in locustfiles/traces",
    )
