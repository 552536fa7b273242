"""Successful results that are complaints: they say that nothing was found or done, without being marked as errors.

Three things give a complaint away: its words; the form in which it repeats the argument that it refuses; and that
several tools, or one tool for all kinds of arguments, say the very same.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from mcp_rl.rewards.json_values import leaves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NOTHING = re.compile(
    r"(?i)^\W*(?:error|null|none(?! of\b)|undefined)\b|"
    r"^(?:\w+ ){1,2}error: |\bno (?:matches|results|such)\b|\bnot (?:found|valid json)\b|"
    r"\berror\W+(?-i:[A-Z]{4,})\b|\berror (?:has |had )?(?:occurr?ed|happened|while|during|when|trying)\b|"
    r"\berror (?!handling|logging|reporting|checking|tracking|messaging|correcting)\w+ing\b|"
    r"^[^a-z0-9]*(?:[a-z]+ ){0,3}fail(?:ed|ure)(?: to\b|:)|"
    r"^\W*no (?:\w+ ){1,3}(?:found|set|exists?|available|match(?:es|ed|ing)?)\b"
)
_NOTHING_ELSEWHERE = re.compile(
    r"(?i)\bkeine? (?:treffer|ergebnisse?|(?:\w{1,30} ){1,3}gefunden)\b|\bkeine? solche[nrs]?\b|"
    r"\baucune? (?:résultat|\w{1,30} trouvée?)|\b(?:sin|ningún) resultados?\b|\bnessun risultato\b|"
    r"\bnenhum resultado\b|ничего не найдено|没有结果|沒有結果|格式错误|格式錯誤|該当なし|結果なし|결과 없음|"
    r"^.{0,12}?(?:不支持|不支援|失败|失敗|错误|錯誤|无法|無法|无效|無效)"
)
"""The same in other languages: "Keine Treffer"."""
_FAILED_STATUS = re.compile(r"(?i)^(?:error|fail|failed|failure)$|not[ _-]?found|^no[ _-]?(?:match|result)|^invalid")
_WRAPPERS = ("result", "data", "response", "output")
"""Keys of objects that hold a server's own answer."""
_FOUND = ("found", "matched")
"""Keys under which `false` says that nothing was found."""
_MESSAGE = re.compile(r"(?i)message|msg|details?|reason|info|notice|warning|results?|output|response|status|answer")
"""Names under which a JSON object tells its caller how a call went."""
_SYSTEM_ERROR = re.compile(r"\b[Ee]rror\W{1,4}E[A-Z]{3,}\b")
_HEADING = re.compile(r"(?i)^#{1,6} errors? \w[^\n]{0,200}\n")
"""The first line of a page about errors."""
_READ = 20_000
"""Number of characters of a result that are searched."""
_ERROR = (
    "error|errore|erreur|erro|fehler|fout|fejl|feil|virhe|błąd|chyba|hiba|hata|eroare|ошибка|помилка|错误|錯誤|エラー|"
    "오류|에러|خطأ|שגיאה"
)
"""The word for an error in some languages."""
_ERROR_KEY = re.compile(rf"(?i)(?:{_ERROR})(?:[ _]?(?:message|msg|text|detail))?|errmsg|exception")
_ERROR_FIRST = re.compile(rf"(?i)^\W{{0,5}}(?:{_ERROR})\s?[:\uff1a]")
_LONGEST, _MOST_LINES = 400, 3
"""Characters and lines of a complaint about an argument."""
_REFUSES = re.compile(
    r"^\W{0,5}(?:(?:sorry|the|this|that|given|your),? ){0,3}(?:"
    r"(?:path|file|value|it)? ?(?:is )?not an? (?:valid (?:\w+ ){0,2}\w+|"
    r"(?:\w+ ){0,2}?(?:folder|directory|file|path|repository|database))|"
    r"(?:invalid|unknown|unsupported|unrecogni[sz]ed|illegal|unexpected|missing|bad) (?:\w+ ){0,3}\w+|"
    r"(?:can ?not|can't|could not|couldn't|unable to) (?:\w+ ){0,4}\w+"
    r")\s?[:\uff1a=('\"`]"
)
"""The beginning of a complaint that goes on with the argument: "not a folder: notes.txt"."""
_THERE_IS_NO = re.compile(r"\W{0,5}there (?:is|are|was|were) no (?:\w+ ){1,4}['\"`(\[]?")
"""All that stands before the argument in "There is no book b-9."."""
_AFTER = re.compile(
    r"['\"`)\]]?\s{0,2}(?:(?:(?:is|was) )?"
    r"not an? (?:\w+ ){0,2}?(?:folder|directory|file|path|repository|database)\b|"
    r"(?:does not|doesn't|did not|do not) exist\b|"
    r"(?:is|was|are|were) not (?:known|supported|recogni[sz]ed|allowed|permitted|accessible|readable)\b|"
    r"(?:is|was) (?:unknown|unsupported|not allowed)\b)"
)
"""The words behind the argument in a complaint: "notes.txt is not a folder"."""
_ELSEWHERE = re.compile(
    r"(?i)不存在|找不到|未找到|没有找到|無法|无法|无效|見つかりません|存在しません|찾을 수 없|"
    r"non trovat|non esiste|nicht gefunden|existiert nicht|introuvable|n'existe pas|no encontrad|no existe|"
    r"não encontrad|não existe|не найден|не существует"
)
"""Complaints in other languages, beside the argument."""
_FOLDERS = r"(?<=[\s'\"`(:\uff1a])/[\w./@+-]{0,200}/"
"""The folders before an argument that a complaint repeats as a whole path."""
_MOST_TEXTS = 20
"""Arguments that are looked for in a result."""
_LEAST_WORDS = 3
"""Words of a text that may be a complaint because it comes again and again: a calculator may say 12 to many calls."""
_TOOLS, _CALLS = 3, 8
"""Tools that say nothing but one text, and values given to one tool that says nothing else, after which that text is no
answer."""


def reports_failure(text: str, arguments: Mapping[str, Any] | None = None) -> bool:
    """Return whether a successful result says that nothing was found or done: by its words, or as JSON by a status or
    an error. With the call's `arguments`, a text that refuses one of them counts as well."""
    text = _HEADING.sub("", text, count=1)
    is_json = text.lstrip()[:1] in ("{", "[")
    if (
        any(_NOTHING.search(said[:300]) for said in _messages(text))
        or (not is_json and _NOTHING_ELSEWHERE.search(text[:300]))
        or _ERROR_FIRST.search(text)
        or _SYSTEM_ERROR.search(text[:_READ])
    ):
        return True
    if (value := object_in(text)) is None:
        return bool(arguments) and _refuses(text, arguments or {})
    status = value.get("status")
    failed = isinstance(status, str) and _FAILED_STATUS.search(status) is not None
    denied = any(value.get(key) is False for key in ("success", "ok", *_FOUND))
    return failed or denied or bool(error_in(value)) or any(_failed_inside(value.get(key)) for key in _WRAPPERS)


def _failed_inside(value: Any) -> bool:
    """Return whether the object in which a server wraps its answers says that the call failed."""
    return isinstance(value, dict) and (
        any(value.get(key) is False for key in ("success", "ok")) or bool(error_in(value))
    )


def _messages(text: str) -> list[str]:
    """Return the texts by which a result may complain: of JSON those under names for messages, since the rest is data;
    any other text whole."""
    try:
        value = json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
    except (ValueError, RecursionError):
        return [text]
    while isinstance(value, list | dict) and len(value) == 1:
        value = value[0] if isinstance(value, list) else next(iter(value.values()))
    if isinstance(value, dict):
        return [said for name, said in value.items() if isinstance(said, str) and _MESSAGE.fullmatch(name[:40])]
    return [value] if isinstance(value, str) else ["null"] if value is None else []


def error_in(value: Mapping[str, Any]) -> Any:
    """Return what a JSON object holds under a key that means "error" in some language; None if nothing."""
    if value.get("error"):
        return value["error"]
    return next(
        (
            said
            for key, said in value.items()
            if said and isinstance(said, str | list | dict) and _ERROR_KEY.fullmatch(key[:40])
        ),
        None,
    )


def object_in(text: str) -> dict[str, Any] | None:
    """Parse a text as a JSON object; return None for anything else."""
    try:
        value = json.loads(text) if text[:1] == "{" else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def without_echo(text: str, arguments: Mapping[str, Any]) -> str:
    """Return a text without the arguments that it repeats, and without the paths that end in them."""
    for value in _texts(arguments):
        text = re.sub(rf"(?:{_FOLDERS}|(?<![\w/.])){re.escape(value)}(?![\w/])", " ", text)
    return text


def common_texts(said: Mapping[str, Counter[str]], asked: Mapping[str, int]) -> set[str]:
    """Return the texts that answer nothing, by the texts that each tool gave to how many calls.

    Such a text is all that several tools ever said, or all that one tool said to many different values of what it needs
    (`asked`: the number of these). It is short and has words: numbers and brief answers may well come again.
    """
    only = {tool: next(iter(texts)) for tool, texts in said.items() if len(texts) == 1}
    shared = Counter(only.values())
    tools = min(_TOOLS, max(2, len(said)))
    return {
        text
        for tool, text in only.items()
        if len(text) <= _LONGEST
        and (shared[text] >= tools or asked.get(tool, 0) >= _CALLS)
        and len(re.findall(r"[^\W\d_]{2,}", text[:_LONGEST])) >= _LEAST_WORDS
    }


def _refuses(text: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a short text refuses one of the arguments, which it repeats in capitals or small letters."""
    text = text.strip().lower()
    if len(text) > _LONGEST or text.count("\n") >= _MOST_LINES:
        return False
    for value in map(str.lower, _texts(arguments)):
        at = text.find(value)
        if at < 0:
            continue
        begins = _REFUSES.match(text)
        if begins and begins.end() <= at + 1:
            return True
        if _THERE_IS_NO.fullmatch(text[:at]) and not re.search(r"\w", text[at + len(value) :]):
            return True
        if _AFTER.match(text, at + len(value)) or _ELSEWHERE.search(text.replace(value, " ")):
            return True
    return False


def _texts(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts among the arguments, stripped, the longest first."""
    found = {leaf.strip() for leaf in leaves(dict(arguments)) if isinstance(leaf, str) and leaf.strip()}
    yield from sorted(found, key=lambda value: (-len(value), value))[:_MOST_TEXTS]
