"""A worker takes as many file descriptors as it may have, and says when they are too few."""

import resource
import subprocess
import sys

import pytest

RAISE = """
import logging, resource
logging.basicConfig(format="%(message)s")
from tokswarm.worker.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("hard", "warned"),
    [pytest.param(512, "holds about 256 streams, not 10000", id="few"), pytest.param(10_256, "", id="enough")],
)
def test_the_soft_limit_becomes_the_hard_one(hard: int, warned: str) -> None:
    if hard > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
        pytest.skip(f"this machine does not let a process open {hard} files")
    done = subprocess.run([sys.executable, "-c", RAISE.format(hard=hard)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(hard)] * 3
    assert warned in done.stderr
    assert bool(warned) == bool(done.stderr)
