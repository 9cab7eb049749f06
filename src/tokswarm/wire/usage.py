"""Token counts as servers state them, wherever and however they do."""

from typing import Annotated, Any

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
"""Tokens; what is no possible count was not said."""
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class PromptTokensDetails(msgspec.Struct, gc=False):
    """Of the prompt tokens."""

    cached_tokens: Count | None = None


class CompletionTokensDetails(msgspec.Struct, gc=False):
    """Of the output tokens."""

    reasoning_tokens: Count | None = None


class Usage(msgspec.Struct, gc=False):
    """`usage` in the dialects seen: chat and completions, responses, DeepSeek's and Anthropic's cache counts."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    input_tokens_details: PromptTokensDetails | None = None
    output_tokens_details: CompletionTokensDetails | None = None
    prompt_cache_hit_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    reasoning_tokens: Count | None = None

    @property
    def prompt(self) -> int | None:
        """Prompt tokens; None: not said."""
        return self.prompt_tokens if self.prompt_tokens is not None else self.input_tokens

    @property
    def output(self) -> int | None:
        """Output tokens, reasoning included; None: not said."""
        return self.completion_tokens if self.completion_tokens is not None else self.output_tokens

    @property
    def cached(self) -> int | None:
        """Prompt tokens served from a prefix cache; None: not said."""
        for details in (self.prompt_tokens_details, self.input_tokens_details):
            if details is not None and details.cached_tokens is not None:
                return details.cached_tokens
        if self.prompt_cache_hit_tokens is not None:
            return self.prompt_cache_hit_tokens
        return self.cache_read_input_tokens

    @property
    def reasoning(self) -> int | None:
        """Output tokens that were reasoning; None: not said."""
        for details in (self.completion_tokens_details, self.output_tokens_details):
            if details is not None and details.reasoning_tokens is not None:
                return details.reasoning_tokens
        return self.reasoning_tokens


class ServerTimes(msgspec.Struct, gc=False):
    """vLLM's per-request `metrics`."""

    queue_time_ms: Milliseconds | None = None


class Timings(msgspec.Struct, gc=False):
    """llama.cpp's `timings`: tokens of the prompt from the cache and computed, tokens predicted."""

    cache_n: Count | None = None
    prompt_n: Count | None = None
    predicted_n: Count | None = None

    def as_usage(self) -> Usage:
        """The same counts as `usage`."""
        prompt = None if self.prompt_n is None else self.prompt_n + (self.cache_n or 0)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=self.predicted_n,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self.cache_n),
        )


def lenient(value: Any, kind: type[msgspec.Struct]) -> Any:
    """The struct as far as the value's parts are usable: numbers given as text or with a fraction; None for none."""
    if not isinstance(value, dict):
        return None
    made = kind()
    for field in msgspec.structs.fields(kind):
        part = value.get(field.name)
        inner = [arm for arm in getattr(field.type, "__args__", ()) if isinstance(arm, type)]
        struct = next((arm for arm in inner if issubclass(arm, msgspec.Struct)), None)
        if struct is not None:
            setattr(made, field.name, lenient(part, struct))
        elif part is not None:
            try:
                setattr(made, field.name, msgspec.convert(part, field.type, strict=False))
            except msgspec.ValidationError:
                continue
    return made
