"""tokswarm load-tests LLM endpoints before launch and says where tok/s bends, and why."""

from tokswarm.version import VERSION

__all__ = ["VERSION"]
