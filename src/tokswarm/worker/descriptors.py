"""File descriptors: a stream needs one, and the usual soft limit is 1,024."""

import logging
import resource

from tokswarm.worker.slots import SLOT_COUNT

_log = logging.getLogger(__name__)

OTHER_DESCRIPTORS = 256
"""What a worker opens beside its streams: the channel, the log, libraries; generous."""


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as it may; the limit now. Warns when streams may not fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < SLOT_COUNT + OTHER_DESCRIPTORS:
        _log.warning(
            "this process may open %d files, so it holds about %d streams, not %d; raise `ulimit -Hn` or LimitNOFILE",
            hard,
            max(hard - OTHER_DESCRIPTORS, 0),
            SLOT_COUNT,
        )
    return hard
