"""Renders chat templates, which come with checkpoints from anywhere, in a sandbox with bounded time and memory.

The names, filters and settings are those with which transformers renders them. All that a template makes is counted
before or as it is made: texts and lists by their length with everything inside them, steps of loops, and calls.
Jinja's own sandbox keeps a template from Python's objects, but lets it loop for hours and fill memory.
"""

from __future__ import annotations

import functools
import json
import re
import time
from contextvars import ContextVar
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from jinja2 import Template
    from jinja2.compiler import Frame
    from jinja2.parser import Parser
    from jinja2.runtime import Context

_MOST_SECONDS = 0.5
"""Processor time for one rendering, of this thread."""
_MOST_MADE = 32 * 2**20
"""Maximum characters that one rendering may produce, discarded ones included."""
_LARGEST = 4 * 2**20
"""Size of one value, in characters."""
_LONGEST_SOURCE = 2**18
"""Characters of a template; the longest of well-known models has 20,000."""
_LARGEST_NUMBER = 10_000
"""Largest number in a call, such as the width of a text or the end of a range."""
_STEP = 16
"""Cost of a loop's iteration or of a call, in characters, added to the size of its result."""
_ELEMENT = 8
"""Cost of an element of a list."""
_STEPS_UNTIMED = 16
_BITS = 4096
_WIDE = re.compile(r"\d{4}|\*|:[^}]*\{")
"""Widths in the text of a format, or that come from its arguments."""
_FORBIDDEN = ("translate", "to_bytes")


class TemplateRefused(TemplateError):
    """A template makes too much, takes too long, or does what no chat template needs."""


class _Budget:
    """Remaining allowance of one rendering."""

    def __init__(self) -> None:
        self.left = _MOST_MADE
        self.until = time.thread_time() + _MOST_SECONDS
        self.untimed = 0

    def spend(self, amount: int) -> None:
        self.left -= amount + _STEP
        if self.left < 0 or amount > _LARGEST:
            raise TemplateRefused("it makes too much text")
        self.untimed += 1
        if self.untimed >= _STEPS_UNTIMED or amount > 2**16:
            self.untimed = 0
            if time.thread_time() > self.until:
                raise TemplateRefused("it takes too long")


_budget: ContextVar[_Budget | None] = ContextVar("budget of a rendering", default=None)


def _spend(amount: int = 0) -> None:
    if (budget := _budget.get()) is not None:
        budget.spend(amount)


def _size(value: Any) -> int:
    """Return the size of a value with everything in it, as often as it is in it; counting ends above _LARGEST."""
    size, stack = 0, [value]
    while stack and size <= _LARGEST:
        below = stack.pop()
        if isinstance(below, str | bytes):
            size += len(below)
        elif isinstance(below, dict):
            size += 2 * _ELEMENT * len(below)
            stack.extend(chain(below.keys(), below.values()) if size <= _LARGEST else ())
        elif isinstance(below, list | tuple | set | frozenset):
            size += _ELEMENT * len(below)
            stack.extend(below if size <= _LARGEST else ())
        elif isinstance(below, int):
            size += below.bit_length() // 3
        elif isinstance(below, range):
            size += _ELEMENT * len(below)
    return size


def _made(value: Any) -> Any:
    """Count a new value, and return it."""
    _spend(_size(value))
    return value


def _check_arguments(name: str, of: Any, arguments: Iterable[Any]) -> None:
    """Raise TemplateRefused if a method or filter could make far more than it is given."""
    given = list(arguments)
    if name in _FORBIDDEN:
        raise TemplateRefused(f"it calls {name}")
    if any(isinstance(argument, int | float) and abs(argument) > _LARGEST_NUMBER for argument in given):
        raise TemplateRefused(f"it calls {name} with {max(n for n in given if isinstance(n, int | float)):.3g}")
    numbers = [argument for argument in given if isinstance(argument, int) and not isinstance(argument, bool)]
    if name in ("expandtabs", "indent", "tojson") and numbers:
        _spend(_size(of) * max(numbers) // (1 if name != "indent" else 8))
    if name in ("format", "format_map") and isinstance(of, str):
        if _WIDE.search(of):
            raise TemplateRefused("it formats with widths of its own")
        _spend(sum(map(_size, given)) * (1 + of.count("{") + of.count("%")))
    elif name == "replace" and isinstance(of, str | bytes) and len(given) > 1:
        old, new = given[0], given[1]
        if isinstance(old, str | bytes) and isinstance(new, str | bytes) and type(old) is type(of):
            _spend(len(of) + of.count(old) * len(new))  # type: ignore[arg-type]
    elif name == "join":
        parts, separator = (of, given[0] if given else "") if not isinstance(of, str | bytes) else (given[0], of)
        _spend(_size(parts) + len(parts) * _size(separator))
    elif name == "sum":
        _spend(_size(of) * 2)


class _Counting(CodeGenerator):
    """Generates code that counts the steps of loops, and the values that expressions make."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        node.iter = _through("stepped", node.iter)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.visit(_through("joined", nodes.List(node.nodes, lineno=node.lineno)), frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self.write("environment.made(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("environment.made(")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self.write("environment.made(")
        super().visit_Dict(node, frame)
        self.write(")")


def _through(method: str, node: Any) -> nodes.Call:
    """Return the call of a method of the environment with what the node gives."""
    place = nodes.EnvironmentAttribute(method, lineno=node.lineno)
    return nodes.Call(place, [node], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """The tag `generation`, which marks an assistant's tokens and renders as what is in it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _Counting
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation], finalize=_made
        )
        self.filters = {name: _counted(name, filter) for name, filter in {**self.filters, "tojson": _tojson}.items()}
        self.globals.update(
            raise_exception=_raise, strftime_now=lambda form: datetime.now().strftime(form), range=_range,
            dict=_Dict(), namespace=_Namespace,
        )  # fmt: skip
        for name in ("cycler", "lipsum"):
            del self.globals[name]
        self.made = _made

    @staticmethod
    def stepped(values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            _spend()
            yield value

    @staticmethod
    def joined(parts: list[Any]) -> str:
        _spend(_size(parts))
        return "".join(map(str, parts))

    def call(__self, __context: Context, __obj: Any, *arguments: Any, **named: Any) -> Any:
        _spend()
        if isinstance(__obj, LoopContext):
            arguments = (__self.stepped(arguments[0]), *arguments[1:]) if arguments else arguments
        elif (of := getattr(__obj, "__self__", None)) is not None and isinstance(
            of, str | bytes | int | float | list | dict | tuple
        ):
            _check_arguments(__obj.__name__, of, (*arguments, *named.values()))
        return _made(super().call(__context, __obj, *arguments, **named))

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def formatting(*arguments: Any, **named: Any) -> str:
            _check_arguments(value.__name__, str(value.__self__), (*arguments, *named.values()))
            return str(wrapped(*arguments, **named))

        return formatting

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str | bytes):
            _check_arguments("format", str(left), right if isinstance(right, tuple) else (right,))
        elif operator == "*":
            one, other = (left, right) if not isinstance(left, int) else (right, left)
            if isinstance(other, int) and not isinstance(one, int | float):
                _spend(_size(one) * max(0, other) if _size(one) else 0)
                _spend(len(one) * max(0, other) if hasattr(one, "__len__") else 0)
        elif operator == "+":
            _spend(_size(left) + _size(right))
        bits = [abs(value).bit_length() for value in (left, right) if isinstance(value, int)]
        if len(bits) == 2 and (bits[0] * abs(right) if operator == "**" else sum(bits)) > _BITS:
            raise TemplateRefused("it computes with huge numbers")
        return super().call_binop(context, operator, left, right)


def _counted(name: str, filter: Any) -> Any:
    """Return a filter that counts what it makes."""
    skipped = 1 if hasattr(filter, "jinja_pass_arg") else 0

    @functools.wraps(filter)
    def counting(*arguments: Any, **named: Any) -> Any:
        given = list(arguments)
        if name in ("join", "sum") and len(given) > skipped and not hasattr(given[skipped], "__len__"):
            given[skipped] = _made(list(given[skipped]))
        of = given[skipped] if len(given) > skipped else None
        _check_arguments(name, of, (*given[skipped + 1 :], *named.values()))
        _spend(_size(of))
        return _made(filter(*given, **named))

    return counting


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _range(*arguments: int) -> range:
    return range(*arguments)  # counted as the result of a call


class _Dict:
    """The name `dict` in a template: a function, without the attributes of the type."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class _Namespace(Namespace):
    """The name `namespace` in a template; none of its names begins with an underscore."""

    def __init__(*arguments: Any, **named: Any) -> None:
        self, rest = arguments[0], arguments[1:]
        found: dict[Any, Any] = dict(*rest, **named)
        for name in found:
            _check_name(name)
        Namespace.__init__(self, found)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it stores {name!r} in a namespace")


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    return _Environment().from_string(source)


def render_template(source: str, **values: Any) -> str:
    """Render a chat template with the values that it knows by name.

    Raises TemplateError if it cannot be read or refuses the values, TemplateRefused if it makes too much.
    """
    if not isinstance(source, str):
        raise TemplateRefused(f"it is {type(source).__name__} in place of a text")
    if len(source) > _LONGEST_SOURCE:
        raise TemplateRefused(f"it has {len(source):,} characters, more than {_LONGEST_SOURCE:,}")
    token = _budget.set(None)  # a template is compiled once, and its length is bounded
    try:
        template = _compiled(source)
        _budget.set(_Budget())
        return template.render(**values)
    except TemplateError:
        raise
    except RecursionError:
        raise TemplateRefused("it is nested too deeply") from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, SyntaxError, TypeError, ValueError) as error:
        raise TemplateError(f"{type(error).__name__}: {error}") from error
    finally:
        _budget.reset(token)


def render_chat(
    tokenizer: Any,
    messages: Sequence[Any],
    tools: Sequence[Any],
    *,
    prompt: bool,
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """Render messages with a tokenizer's template, with the opening of the model's turn if `prompt`.

    `arguments` are further names that the template knows. Raises TemplateError like `render_template`.
    """
    given: dict[str, Any] = {**(arguments or {}), "tools": list(tools) or None, "add_generation_prompt": prompt}
    if not hasattr(tokenizer, "get_chat_template"):  # its own way of rendering
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **given))
    try:
        source = tokenizer.get_chat_template(None, given["tools"])
    except ValueError as error:
        raise TemplateRefused(str(error).partition(".")[0]) from error
    return render_template(source, messages=list(messages), documents=None, **given, **tokenizer.special_tokens_map)
