"""The inputs that are kept: by hand in `corpus/TARGET/`, real streams, and what the fuzzer grew, packed in one file."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ANSWERS = HERE.parent / "unit" / "wire" / "answers"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def inputs(target: str) -> Iterator[tuple[str, bytes]]:
    """Every kept input of a target, with its name."""
    for path in sorted((HERE / "corpus" / target).iterdir()):
        yield path.name, path.read_bytes()
    if target in ("sse", "chat", "responses"):
        for path in sorted(ANSWERS.iterdir()):
            yield path.name, path.read_bytes()
    packed = packed_path(target)
    if packed.exists():
        with zipfile.ZipFile(packed) as archive:
            for name in sorted(archive.namelist()):
                yield f"{packed.name}:{name}", archive.read(name)


def packed_path(target: str) -> Path:
    """Where the inputs that the fuzzer grew are kept."""
    return HERE / "corpus" / f"{target}.zip"


def pack(target: str, grown: dict[str, bytes]) -> None:
    """Keep these inputs, and no others, as those that the fuzzer grew; the same inputs make the same file."""
    with zipfile.ZipFile(packed_path(target), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(grown.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
