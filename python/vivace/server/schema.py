"""What the routes take, field by field. A field that is not here is refused by name; one that is here and that nothing can be
done about is in REFUSED of its route, with the reason. Ranges and lengths: sampling.py and the routes."""
from __future__ import annotations

from typing import Any

from msgspec import Struct, json


class Part(Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None


class Message(Struct):
    """Fields that clients send back from answers, as they came, are taken and not used."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # random characters beside deltas: none are sent, which `false` asks for


class Sampled(Struct, forbid_unknown_fields=True, kw_only=True):
    """What /v1/chat/completions and /v1/completions have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    user: str | None = None
    # Beyond OpenAI, by the names that other servers have.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    # Of this server.
    deterministic: bool | None = None
    priority: str | None = None
    cache_salt: str | None = None


class Chat(Sampled, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    service_tier: str | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class Completion(Sampled, kw_only=True):
    prompt: str | list[str | int | list[int]]  # a text, texts, tokens, or lists of tokens
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class AnthropicMessage(Struct):
    role: str
    content: str | list[Any]


class Counted(Struct, forbid_unknown_fields=True, kw_only=True):
    """What /v1/messages and its count_tokens have in common."""

    model: str
    messages: list[AnthropicMessage]
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class Messages(Counted, kw_only=True):
    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    container: Any = None
    mcp_servers: list[Any] | None = None
    inference_geo: str | None = None


class Item(Struct):
    """An item of a response's input; `type` says which fields it has."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Responses(Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    input: str | list[Item]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


class SealCapsule(Struct, forbid_unknown_fields=True, kw_only=True):
    response_id: str
    tier: str | None = None


class Tokenize(Struct, forbid_unknown_fields=True, kw_only=True):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    content: str | None = None  # llama.cpp's name of `prompt`
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class Detokenize(Struct, forbid_unknown_fields=True, kw_only=True):
    model: str | None = None
    tokens: list[int]


CHAT, COMPLETION, RESPONSES, MESSAGES, COUNT, TOKENIZE, DETOKENIZE, CAPSULE = map(json.Decoder, (Chat, Completion, Responses, Messages, Counted, Tokenize, Detokenize, SealCapsule))
