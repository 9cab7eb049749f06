"""The bodies of the OpenAI-compatible API: what is asked, what is answered, how errors look.

Shapes are those of vLLM (real answers of it are in the tests' samples). Fields that have no
meaning for a simulated model, such as `temperature`, are accepted and ignored.
"""

from array import array
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from tokswarm.simulator.words import encode, encode_chat

AtLeastOne = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0, le=2**32 - 1)]


_T = TypeVar("_T")


class ApiError(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str | None = None,
        headers: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        """The field at fault."""
        self.code = code
        """For programs to branch on; None: the status, as vLLM gives it."""
        self.kind = kind
        """The error's `type`; None: the usual one of the status."""
        self.headers = headers
        """Header lines of the answer."""

    def body(self) -> bytes:
        """Its JSON."""
        return error_body(self.status, str(self), self.param, code=self.code, kind=self.kind)


_ERROR_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    429: "RateLimitError",
    500: "InternalServerError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}


def error_body(
    status: int, message: str, param: str | None = None, *, code: str | None = None, kind: str | None = None
) -> bytes:
    """The JSON of an error as OpenAI clients expect it."""
    error = {
        "message": message,
        "type": _ERROR_TYPES.get(status, "BadRequestError") if kind is None else kind,
        "param": param,
        "code": status if code is None else code,
    }
    return msgspec.json.encode({"error": error})


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TextPart(msgspec.Struct, frozen=True):
    """A part of a message; only text is understood."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    content: str | list[TextPart] | None = None

    def text(self) -> str:
        """The text of all parts."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of generation share."""

    model: str | None = None
    max_tokens: AtLeastOne | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    n: int | None = None
    priority: int | None = None
    """Lower is served first, where the scheduler looks at it."""

    def limit_tokens(self) -> int | None:
        """The limit on output tokens; None: the context alone limits it."""
        return self.max_tokens

    def prompt(self) -> "array[int]":
        """Token ids of the prompt."""
        raise NotImplementedError


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: AtLeastOne | None = None

    def limit_tokens(self) -> int | None:
        """`max_completion_tokens` comes first, as in the official API."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompt(self) -> "array[int]":
        """Token ids with the template around them."""
        return encode_chat((message.role, message.text()) for message in self.messages)


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/completions. A list of prompts is not supported; a list of token ids is one prompt."""

    text_or_ids: str | list[TokenId] = msgspec.field(name="prompt")

    def limit_tokens(self) -> int | None:
        """The official API's default is 16."""
        return 16 if self.max_tokens is None else self.max_tokens

    def prompt(self) -> "array[int]":
        """Token ids as given, or of the text."""
        if isinstance(self.text_or_ids, str):
            return encode(self.text_or_ids)
        return array("I", self.text_or_ids)


class InputPart(msgspec.Struct, frozen=True):
    """A part of an input message; only text is understood."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(msgspec.Struct, frozen=True):
    """One message of a response's input."""

    role: str
    content: str | Annotated[list[InputPart], Meta(min_length=1)]
    type: Literal["message"] = "message"

    def text(self) -> str:
        """The text of all parts."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class ResponsesRequest(GenerationRequest, frozen=True, kw_only=True):
    """POST /v1/responses. What is remembered of earlier responses is not simulated."""

    input: str | Annotated[list[InputMessage], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: AtLeastOne | None = None

    def limit_tokens(self) -> int | None:
        """This API has one name for it."""
        return self.max_output_tokens

    def prompt(self) -> "array[int]":
        """Token ids with the template around them, instructions first; none for an empty text."""
        messages = [] if self.instructions is None else [("system", self.instructions)]
        if isinstance(self.input, str):
            if not self.input.strip():
                return array("I")
            messages.append(("user", self.input))
        else:
            messages += [(message.role, message.text()) for message in self.input]
        return encode_chat(messages)


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize: a text, or a conversation with its template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    return_token_strs: bool = False

    def tokens(self) -> "array[int]":
        """Token ids. ApiError when not exactly one of the two is given."""
        if (self.prompt is None) == (self.messages is None):
            raise ApiError(400, "expected exactly one of prompt and messages", param="prompt")
        if self.prompt is not None:
            return encode(self.prompt)
        return encode_chat((message.role, message.text()) for message in self.messages or ())


def decode(body: bytes, kind: type[_T]) -> _T:
    """Read a request body. ApiError 400 says where it is wrong."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        message = str(error)
        _, found, place = message.partition(" - at `$.")
        raise ApiError(400, message, param=place.rstrip("`") if found else None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error


class PromptDetails(msgspec.Struct, frozen=True):
    """Where prompt tokens came from."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Token counts of a request, so far or in all."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails | None = None


class ReasoningDetails(msgspec.Struct, frozen=True):
    """Of the output tokens."""

    reasoning_tokens: int = 0


class ResponsesUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts under the names of the responses API."""

    input_tokens: int
    input_tokens_details: PromptDetails
    output_tokens: int
    output_tokens_details: ReasoningDetails = ReasoningDetails()
    total_tokens: int


class RequestTimes(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM's per-request metrics; the definitions are in docs/simulator.md#per-request-times."""

    time_to_first_token_ms: float
    """From the start of the first step that served it."""
    generation_time_ms: float
    """First to last token."""
    queue_time_ms: float
    """Arrival to the start of the first step that served it."""
    mean_itl_ms: float | None
    """None: a single token has no gap."""
    tokens_per_second: float
    """Tokens by the time from the start of the first step to the last token."""
