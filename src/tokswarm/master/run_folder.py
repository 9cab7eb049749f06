"""The folder of a run as the master keeps it: the mix as it was given, `run.json`, the logs."""

from pathlib import Path

from tokswarm.errors import TokswarmError
from tokswarm.insight.run_file import RUN_FILE, RunFile, encode_run_file


def make_run_folder(run_dir: Path, mix_yaml: str) -> None:
    """Make the folder, with the mix in it. TokswarmError when it cannot be written."""
    try:
        (run_dir / "logs").mkdir(parents=True, exist_ok=True)
        (run_dir / "mix.yaml").write_text(mix_yaml, encoding="utf-8")
    except OSError as error:
        raise TokswarmError(
            f"the run's directory {run_dir} cannot be written: {error.strerror}",
            hint="check the rights and the space of the data directory, or choose another with --data-dir",
        ) from error


def keep_run_file(run_dir: Path, run: RunFile) -> None:
    """Write `run.json`, whole or not at all. OSError."""
    path = run_dir / RUN_FILE
    draft = path.with_suffix(".json.part")
    draft.write_bytes(encode_run_file(run))
    draft.replace(path)
