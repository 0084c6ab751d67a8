"""From conversations to prompts, by the chat template of a tokenizer; checks what it is given and knows no model."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, Literal, get_args

from specdec_core.errors import RequestError
from specdec_engine.text.prompt_text import check_text

ContentFormat = Literal["auto", "string", "openai"]
FORMATS: Final[tuple[str, ...]] = get_args(ContentFormat)
TEXT_PARTS: Final = ("text", "input_text", "output_text")
# Arguments of `apply_chat_template` that are set here.
TAKEN: Final = (
    "conversation",
    "chat_template",
    "tools",
    "tokenize",
    "add_generation_prompt",
    "continue_final_message",
    "return_dict",
    "return_tensors",
)

# A tag of transformers' own, around what an assistant has said.
_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")

logger = logging.getLogger("specdec_engine")


@dataclass(frozen=True)
class ChatOptions:
    """How conversations become prompts, with the names and meanings of vLLM's `LLM.chat`.

    chat_template           a template, None for the tokenizer's own
    add_generation_prompt   end with what opens the assistant's answer
    continue_final_message  end inside the last message, which the answer goes on with; add_generation_prompt must be
                            False then
    tools                   functions that the model may call, as JSON schemas; refused if the template does not read
                            them
    chat_template_kwargs    variables for the template, such as {"enable_thinking": False}
    chat_template_content_format  what the template gets for a list of parts: the parts ("openai"), their texts joined
                            by line breaks ("string"), or what the template seems to be written for ("auto"). With
                            "openai", texts become lists of one part

    Raises RequestError for what does not fit together.
    """

    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    chat_template_content_format: ContentFormat = "auto"

    def __post_init__(self) -> None:
        """Refuse values of another type, and two ways to end."""
        if self.add_generation_prompt and self.continue_final_message:
            message = (
                "continue_final_message=True goes on with the last message, and add_generation_prompt=True opens a new "
                "one: pass add_generation_prompt=False"
            )
            raise RequestError(message)
        if self.chat_template_content_format not in FORMATS:
            message = f"chat_template_content_format={self.chat_template_content_format!r} is none of {FORMATS}"
            raise RequestError(message)
        kwargs: Any = self.chat_template_kwargs
        if kwargs is not None and not isinstance(kwargs, Mapping):
            message = f"chat_template_kwargs={kwargs!r:.80}: expected a mapping from names to values"
            raise RequestError(message)
        if taken := sorted(set(kwargs or ()) & set(TAKEN)):
            message = f"chat_template_kwargs has {taken[0]!r}, which is an argument of its own or set here: take it out"
            raise RequestError(message)
        tools: Any = self.tools
        if tools is not None and (isinstance(tools, (str, Mapping)) or not all(isinstance(t, Mapping) for t in tools)):
            message = f"tools={tools!r:.80}: expected a list of mappings, each the JSON schema of a function"
            raise RequestError(message)


def read_template(template: str | PathLike[str] | None) -> str | None:
    """Return a chat template from a text or from a file that has it; raises RequestError for a file that is not there.

    A text with a brace or a line break is a template, any other one the name of a file.
    """
    if template is None:
        return None
    text = fspath(template)
    if isinstance(template, str) and any(mark in text for mark in "{}\n"):
        return text
    try:
        return Path(text).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        message = f"chat_template={text!r} is no template, having no braces, and cannot be read as a file: {error}"
        raise RequestError(message) from error


def render(tokenizer: Any, messages: Sequence[Any], options: ChatOptions) -> list[dict[str, Any]]:
    """Return the prompts that a template makes of one conversation or of several, each with its text and its ids.

    The template writes all special tokens itself, so none is added to its text. Raises RequestError, naming the
    conversation, for one that is not well-formed or that the template refuses.
    """
    template = _template(tokenizer, options)
    if options.tools and not _reads(template, "tools"):
        message = "tools were given, and the chat template does not read them: the model would not see them"
        raise RequestError(message)
    for name in options.chat_template_kwargs or ():
        if not _reads(template, name):
            logger.warning("chat_template_kwargs has %r, which the chat template does not read", name)
    one = bool(messages) and isinstance(messages[0], Mapping)
    prompts = []
    for index, conversation in enumerate([messages] if one else list(messages)):
        where = "the conversation" if one else f"conversation {index}"
        read = _conversation(conversation, where, wrap=_wants_parts(template, options), whole=_tests_text(template))
        text = _apply(tokenizer, template, read, options, where)
        check_text(text, f"the text of {where}")
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        prompts.append({"prompt": text, "prompt_token_ids": list(ids)})
    return prompts


def _template(tokenizer: Any, options: ChatOptions) -> str:
    own = getattr(tokenizer, "chat_template", None)
    if tokenizer is None or not (options.chat_template or own):
        message = "chat needs a tokenizer with a chat template; this model has none, so use generate with ids"
        raise RequestError(message)
    if options.chat_template is not None:
        return options.chat_template
    if isinstance(own, str):
        return own
    try:
        template: str = tokenizer.get_chat_template(None, tools=list(options.tools) if options.tools else None)
    except ValueError as error:  # several named templates, none of them the default
        message = f"the tokenizer's chat template cannot be chosen: {error}; pass chat_template="
        raise RequestError(message) from error
    return template


def _apply(tokenizer: Any, template: str, conversation: list[Any], options: ChatOptions, where: str) -> str:
    try:
        text: str = tokenizer.apply_chat_template(
            conversation,
            chat_template=template,
            tools=list(options.tools) if options.tools else None,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            tokenize=False,
            **(options.chat_template_kwargs or {}),
        )
    except Exception as error:  # the template's own raise_exception, its faults, and what it cannot make of its input
        said = str(error).strip() or type(error).__name__
        message = f"{where}: the chat template refuses it: {said} ({type(error).__name__})"
        raise RequestError(message) from error
    return text


def _conversation(conversation: Any, where: str, *, wrap: bool, whole: bool) -> list[dict[str, Any]]:
    """Return the messages of a conversation as a template gets them."""
    if isinstance(conversation, (str, Mapping)) or not isinstance(conversation, Sequence):
        message = f"{where}: expected a list of {{'role': ..., 'content': ...}}, got {conversation!r:.80}"
        raise RequestError(message)
    if not conversation:
        message = f"{where} has no messages; at least one is needed"
        raise RequestError(message)
    read = []
    for index, given in enumerate(conversation):
        at = f"{where}, message {index}"
        if not isinstance(given, Mapping) or not isinstance(given.get("role"), str):
            message = f"{at}: expected {{'role': ..., 'content': ...}}, got {given!r:.80}"
            raise RequestError(message)
        content = _content(given.get("content"), at, wrap=wrap and given["role"] != "tool", whole=whole)
        read.append(_with_calls({**given, "content": content}, at))
    return read


def _content(content: Any, at: str, *, wrap: bool, whole: bool) -> Any:
    """Return a message's content: its text, or a list of text parts if the template is written for these."""
    if content is None:  # an assistant's that calls tools
        return [] if wrap and not whole else ""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if wrap and not whole else content
    if not isinstance(content, Sequence):
        message = f"{at}: content is a text, a list of parts or None, got {type(content).__name__}"
        raise RequestError(message)
    texts = [_part(part, at) for part in content]
    return [{"type": "text", "text": text} for text in texts] if wrap else "\n".join(texts)


def _part(part: Any, at: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text" if "text" in part else None) if isinstance(part, Mapping) else None
    if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
        said = f"a part of type {kind!r}" if kind is not None and kind not in TEXT_PARTS else f"the part {part!r:.60}"
        message = f"{at} has {said}; only text is read here: {{'type': 'text', 'text': ...}}"
        raise RequestError(message)
    return str(part["text"])


def _with_calls(message: dict[str, Any], at: str) -> dict[str, Any]:
    """Return a message with the arguments of its tool calls as mappings, which is what templates expect."""
    calls = message.get("tool_calls")
    if calls is None or message["role"] != "assistant":
        return message
    if isinstance(calls, (str, Mapping)) or not all(isinstance(call, Mapping) for call in calls):
        problem = f"{at}: tool_calls is a list of mappings, got {calls!r:.80}"
        raise RequestError(problem)
    if not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    return {**message, "tool_calls": [_call(call, at) for call in calls]}


def _call(call: Mapping[str, Any], at: str) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), (str, type(None))):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError as error:
        message = f"{at}: the arguments of the tool call {function.get('name')!r} are not valid JSON: {error}"
        raise RequestError(message) from error
    return {**call, "function": {**function, "arguments": arguments}}


def _wants_parts(template: str, options: ChatOptions) -> bool:
    if options.chat_template_content_format == "auto":
        return _goes_through_content(template)
    return options.chat_template_content_format == "openai"


@lru_cache(16)
def _parsed(template: str) -> Any:
    """Return a template's syntax tree, None if it is no template; the reason comes when it is applied."""
    from jinja2 import TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return environment.parse(_GENERATION.sub("", template))
    except TemplateSyntaxError:
        return None


def _reads(template: str, name: str) -> bool:
    """Return whether a template reads a variable; True if that cannot be known."""
    from jinja2 import nodes

    tree = _parsed(template)
    return tree is None or any(node.name == name for node in tree.find_all(nodes.Name))


def _goes_through_content(template: str) -> bool:
    """Return whether a template has a loop over the content of a message."""
    from jinja2 import nodes

    tree = _parsed(template)
    if tree is None:
        return False
    names = {
        assign.target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node)
    }
    loops = (_bare(loop.iter) for loop in tree.find_all(nodes.For))
    return any(_is_content(node) or (isinstance(node, nodes.Name) and node.name in names) for node in loops)


def _tests_text(template: str) -> bool:
    """Return whether a template asks if something is a text, so that texts need not be made lists of parts."""
    from jinja2 import nodes

    tree = _parsed(template)
    return tree is not None and any(test.name == "string" for test in tree.find_all(nodes.Test))


def _is_content(node: Any) -> bool:
    from jinja2 import nodes

    node = _bare(node)
    if isinstance(node, nodes.Getattr):
        return bool(node.attr == "content")
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


def _bare(node: Any) -> Any:
    """Return an expression without the filters around it."""
    from jinja2 import nodes

    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    return node
