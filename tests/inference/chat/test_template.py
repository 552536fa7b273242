"""Chat templates are rendered as transformers renders them, and can take neither time nor memory."""

import time
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers import AutoTokenizer

from mcp_rl.errors import ConfigError
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.chat.template import TemplateRefused, render_chat, render_template
from mcp_rl.tiny import weights_path

SCHEMA = """{%- macro typed(s, depth) -%}
{%- if s.type == 'object' %}{ {%- for name, inner in s.properties | items %}{{ name }}: {{ typed(inner, depth + 1) }}
{%- if not loop.last %}, {% endif %}{%- endfor %} }{% elif s.type is iterable and s.type is not string %}
{{- s.type | join(' | ') }}{% else %}{{ s.type }}{% endif %}
{%- endmacro -%}
{%- set ns = namespace(last=-1, texts=[]) %}
{%- for message in messages[::-1] %}
{%- if message.role == 'user' and ns.last < 0 %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{{- ns.last ~ ' of ' ~ messages | length }}
{%- for tool in tools or [] %}{{ typed(tool.function.parameters, 0) }}{{ tool | tojson(indent=2) }}{% endfor %}
{%- for message in messages if message.role != 'system' %}
{%- if loop.index > 3 %}{% break %}{% endif %}
{{- '%s|%d' % (message.role, loop.index) + '{:>6}'.format(message.role[:4]) }}
{%- generation %}{{ message.content.split('</think>')[-1].strip() | replace('a', 'bb') * 2 }}{% endgeneration %}
{%- endfor %}{{ [1, 2] + [3] }}{{ dict(a=1, b=[2]).items() | list }}{{ ['x', 'y'] | map('upper') | join(', ') }}
{%- for part in [['a', ['b']], 'c'] recursive %}{{ loop(part) if part is not string else part }}{% endfor %}
{{- range(3) | sum }}{{ eos_token }}{{ add_generation_prompt }}{{ strftime_now('%%') }}"""
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": ["number", "null"]}, "b": {"type": "object", "properties": {}}},
        },
    },
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(weights_path())


def test_templates_render_as_with_transformers(tokenizer: Any) -> None:
    messages = [
        {"role": role, "content": f"<think>x</think> a {role}"} for role in ("system", "user", "assistant", "user")
    ]
    for template in (SCHEMA, tokenizer.chat_template):
        tokenizer = AutoTokenizer.from_pretrained(weights_path())
        tokenizer.chat_template = template
        for tools in ([TOOL, TOOL], []):
            for prompt in (True, False):
                wanted = tokenizer.apply_chat_template(
                    messages, tools=tools or None, tokenize=False, add_generation_prompt=prompt
                )
                assert render_chat(tokenizer, messages, tools, prompt=prompt) == wanted


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for a in [range(999), range(999)] recursive %}{% for b in a %}{{ loop(a) }}{% endfor %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|tojson }}",
        "{% set n = namespace(x={}) %}{% for a in range(60) %}{% set n.x = {1: n.x, 2: n.x} %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=(1,)) %}{% for a in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}{{ n.x == n.x }}",
        "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 2 ** 100000000 }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format('x', 99999999) }}",
        "{{ 'x'.center(9999999999) }}",
        "{{ 'x' | center(9999999999) }}",
        "{{ ('a,' * 9999) | replace(',', 'b' * 9999) }}",
        "{{ 'x'.join(['y' * 9999] * 9999) }}",
        "{{ ('a,' * 9999).replace(',', 'b' * 9999) }}",
        "{{ [[1] * 9999] * 999 | sum(start=[]) }}",
        "{{ 'a' | indent(9999999999) }}",
        "{{ (range(9999) | list * 99) | join('x' * 999) }}",
        "{{ ('x\\t' * 9999).expandtabs(9999) }}",
        "x" * 300_000,
        "{% for a in range(9999) %}{% if a in range(9999) | list %}{% endif %}{% endfor %}",
        "(" * 9 + "{{ " + "(" * 9000,
        "{{ (1).to_bytes(9999999999) }}",
        "{{ 'x'.translate({120: 'y' * 99999}) }}",
    ],
)
def test_a_template_cannot_take_time_or_memory(template: str) -> None:
    began = time.thread_time()
    with pytest.raises(TemplateError):
        render_template(template, messages=[])
    assert time.thread_time() - began < 3, "hours without limits"


@pytest.mark.parametrize(
    "template", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ namespace(__x=1) }}"]
)
def test_a_template_reaches_no_object_of_python(template: str) -> None:
    with pytest.raises(TemplateError):
        render_template(template, messages=[])


def test_a_hostile_template_is_one_sentence(tokenizer: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(weights_path())
    tokenizer.chat_template += "{% if messages[0].content == 'Add.' %}{{ 'x' * 10 ** 10 }}{% endif %}"
    chat = ChatFormat(tokenizer)
    with pytest.raises(ConfigError, match=r"cannot render user messages: it makes too much text\."):
        chat.initial([{"role": "user", "content": "Add."}], ())
    for odd in ({"a": "b"}, 7):
        tokenizer.chat_template = odd
        with pytest.raises(ConfigError, match="chat template"):
            ChatFormat(tokenizer)


def test_the_longest_conversations_are_rendered() -> None:
    template = (weights_path() / "chat_template.jinja").read_text()
    messages = [{"role": "user", "content": "word " * 200} for _ in range(3000)]
    tools = [TOOL] * 300
    try:
        text = render_template(template, messages=messages, tools=tools, add_generation_prompt=True)
    except TemplateRefused as refused:  # a very slow machine
        assert "too long" in str(refused)
    else:
        assert len(text) > 3_000_000
