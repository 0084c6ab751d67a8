"""Conversations become the prompts that their chat template makes of them, or one error that names what is wrong."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from words import tiny_tokenizer

from specdec_core.errors import RequestError
from specdec_engine import LLM, SamplingParams
from specdec_engine.text.chat import ChatOptions, read_template, render
from specdec_testing.targets import tiny_target

PLAIN = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<model>{% endif %}"
)
PARTS = (
    "{% for message in messages %}<user>{% set content = message.content %}"
    "{% for part in content | list %}[{{ part.text }}]{% endfor %}{% endfor %}"
)
EITHER = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message['content'] %}[{{ part['text'] }}]{% endfor %}{% endif %}{% endfor %}"
)
THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}<think>{% endif %}"
TOOLS = (
    "{% for tool in tools or [] %}{{ tool.function.name }};{% endfor %}{% for m in messages %}"
    "{% if m.tool_calls %}{% for call in m.tool_calls %}{{ call.function.arguments.city }}{% endfor %}{% endif %}"
    "{{ m.content }}{% endfor %}"
)
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
)


def say(content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def text_of(messages: Any, template: str = PLAIN, **options: Any) -> str:
    (prompt,) = render(tiny_tokenizer(template), messages, ChatOptions(**options))
    return str(prompt["prompt"])


def test_parts_of_text_are_joined_by_line_breaks_for_a_template_of_texts() -> None:
    parts = [{"type": "text", "text": "a cat"}, {"type": "input_text", "text": "a hat"}, "a mat"]
    assert text_of([say(parts)]) == "<user>a cat\na hat\na mat<model>"


def test_a_template_that_loops_over_parts_gets_parts() -> None:
    assert text_of([say([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])], PARTS) == "<user>[a][b]"
    assert text_of([say("a cat")], PARTS) == "<user>[a cat]"


def test_a_template_that_takes_both_gets_what_was_given() -> None:
    assert text_of([say("a"), say([{"type": "text", "text": "b"}])], EITHER) == "a[b]"


def test_the_content_format_can_be_chosen() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert text_of([say(parts)], EITHER, chat_template_content_format="string") == "a\nb"
    assert text_of([say(parts)], EITHER, chat_template_content_format="openai") == "[a][b]"
    with pytest.raises(RequestError, match="chat_template_content_format='xml'"):
        ChatOptions(chat_template_content_format="xml")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "nonsense"])
def test_a_part_that_is_no_text_is_refused_by_its_type(kind: str) -> None:
    with pytest.raises(RequestError, match=f"message 1 has a part of type '{kind}'"):
        text_of([say("a"), say([{"type": "text", "text": "b"}, {"type": kind, kind: {}}])])


def test_a_call_of_a_tool_has_no_content_and_its_arguments_are_a_mapping() -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    messages = [say("rain?"), say(None, "assistant", tool_calls=[call]), say([{"type": "text", "text": "no"}], "tool")]
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    assert text_of(messages, TOOLS, tools=[tool]) == "weather;rain?Parisno"
    with pytest.raises(RequestError, match="message 1: the arguments of the tool call 'weather' are not valid JSON"):
        bad = {**call, "function": {"name": "weather", "arguments": "{city"}}
        text_of([messages[0], say(None, "assistant", tool_calls=[bad])], TOOLS)


def test_tools_that_the_model_would_not_see_are_refused() -> None:
    with pytest.raises(RequestError, match="template does not read them"):
        text_of([say("a")], tools=[{"type": "function", "function": {"name": "weather"}}])


def test_variables_of_a_template_are_passed_on_and_others_are_named(caplog: pytest.LogCaptureFixture) -> None:
    thinking, off = {"enable_thinking": True}, {"enable_thinking": False}
    assert text_of([say("a")], THINKING, chat_template_kwargs=thinking) == "a<think>"
    assert text_of([say("a")], THINKING, chat_template_kwargs=off) == "a"
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "specdec_engine"):
        assert text_of([say("a")], chat_template_kwargs=off) == "<user>a<model>"
    assert "'enable_thinking', which the chat template does not read" in caplog.text
    with pytest.raises(RequestError, match="chat_template_kwargs has 'tokenize'"):
        ChatOptions(chat_template_kwargs={"tokenize": True})


def test_an_answer_may_go_on_with_the_last_message() -> None:
    messages = [say("a cat"), say("sat on", "model")]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    ended = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    assert text_of(messages, ended, **options) == "<user>a cat;<model>sat on"
    assert text_of(messages, ended, add_generation_prompt=False) == "<user>a cat;<model>sat on;"
    with pytest.raises(RequestError, match="pass add_generation_prompt=False"):
        text_of(messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (STRICT, "roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "UndefinedError"),
        ("{% for %}", "TemplateSyntaxError"),
    ],
)
def test_what_a_template_raises_is_one_error_that_names_the_conversation(template: str, said: str) -> None:
    second = [say("a"), say("b")] if template == STRICT else [say("a")]
    tokenizer = tiny_tokenizer(template)
    with pytest.raises(RequestError, match=f"the chat template refuses it: .*{said}") as caught:
        render(tokenizer, [[say("a")], second], ChatOptions())
    assert str(caught.value).startswith("conversation 1" if template == STRICT else "conversation 0")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([["hello"]], "conversation 0, message 0: expected"),
        (["hello"], "conversation 0: expected a list"),
        ([[say("a")], []], "conversation 1 has no messages"),
        ([{"content": "a"}], "the conversation, message 0: expected"),
        ([say(5)], "content is a text, a list of parts or None, got int"),
        ([say("a\ud800")], r"lone surrogate, \\ud800, at index"),
    ],
)
def test_what_is_no_conversation_is_refused(messages: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        render(tiny_tokenizer(PLAIN), messages, ChatOptions())


def starting_tokenizer() -> Any:
    """One that puts a start token before every text, as Llama's does, with a template that writes it, too."""
    tokenizer = tiny_tokenizer("<user>{% for m in messages %}{{ m.content }}{% endfor %}")
    tokenizer.add_special_tokens({"bos_token": "<user>"})
    start = ("<user>", tokenizer.bos_token_id)
    tokenizer._tokenizer.post_processor = TemplateProcessing(single="<user> $A", special_tokens=[start])
    return tokenizer


def test_a_prompt_has_one_start_token_whoever_writes_it() -> None:
    tokenizer = starting_tokenizer()
    model = tiny_target("llama", vocab_size=len(tokenizer))
    params = SamplingParams(temperature=0.0, max_tokens=1)
    with LLM(hf_model=model, tokenizer=tokenizer) as llm:
        by_chat = llm.chat([say("the cat")], params)[0]
        text = tokenizer.apply_chat_template([say("the cat")], tokenize=False)
        by_hand, bare, twice = llm.generate([text, "the cat", "<user><user>the cat"], params)
    expected = [tokenizer.bos_token_id, *tokenizer("the cat", add_special_tokens=False)["input_ids"]]
    assert by_chat.prompt == text and by_chat.prompt_token_ids == expected
    assert by_hand.prompt_token_ids == expected and bare.prompt_token_ids == expected
    assert twice.prompt_token_ids == [tokenizer.bos_token_id, *expected]


def test_a_template_may_be_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("\ufeff{{ messages[0].content }}!", encoding="utf-8")
    assert read_template(file) == read_template(str(file)) == "{{ messages[0].content }}!"
    with pytest.raises(RequestError, match="cannot be read as a file"):
        read_template("nowhere.jinja")
    tokenizer = tiny_tokenizer(None)
    model = tiny_target("llama", vocab_size=len(tokenizer))
    with LLM(hf_model=model, tokenizer=tokenizer, chat_template=file) as llm:
        assert llm.chat_prompts([say("a cat")])[0]["prompt"] == "a cat!"
        assert llm.chat_prompts([say("a cat")], PLAIN)[0]["prompt"] == "<user>a cat<model>"
        with pytest.raises(RequestError, match="priority=1 cannot be honoured"):
            llm.chat([say("a cat")], priority=1)


@pytest.mark.parametrize("text", ["a \ud800 cat", "caf\udce9"])
def test_half_a_surrogate_pair_in_a_text_is_refused(text: str) -> None:
    tokenizer = tiny_tokenizer()
    with LLM(hf_model=tiny_target("llama", vocab_size=len(tokenizer)), tokenizer=tokenizer) as llm:
        with pytest.raises(RequestError, match="prompt 1 has a lone surrogate"):
            llm.generate(["a cat", text])
    with pytest.raises(RequestError, match="a text of stop has a lone surrogate"):
        SamplingParams(stop=[text])
