"""TOML text and `--set` assignments to plain tables; every problem as a `RecipeError` with its place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli

from erlcli.errors import RecipeError
from erlcli.recipe.words import dotted, found, printable, shorten, wrap

MAX_BYTES = 1 << 20  # a recipe is a page of text; anything larger is a mistake or an attack
LONGEST_SLIP = 30  # of a value that is printed as it should have been
MAX_DEPTH = 16  # brackets within brackets, or dots in a key: tomli recurses into one and is quadratic in the other

# Strings and comments (each in one match, closed or not, so that scanning stays linear), then what nests.
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"""|\Z)' + r"|'''.*?(?:'''|\Z)" + r'|"(?:\\.|[^"\\\n])*"?' + r"|'[^'\n]*'?"
    r"|#[^\n]*" + r"|[\[\]{}.=,\n]",
    re.DOTALL,
)
_PLACE = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)$")
_REMEDIES = (
    (r"overwrite|twice|Duplicate|mutate", "a key can be set once; remove one of the two"),
    (r"Invalid value", 'text needs "quotes"; booleans are true and false; 0.5, not .5'),
    (r"'=' after a key", 'write key = value; text needs "quotes"'),
    (r"Illegal character|Unterminated|Unescaped|in a string", "close the quotes; write a backslash twice"),
    (r"Unclosed|Expected '\]'", "close the bracket"),
    (r"newline or end of document", "one key = value a line"),
)
_THOUSANDS = r"[-+]?[1-9][0-9]{0,2}(,[0-9]{3})*,0[0-9]{2}(,[0-9]{3})*"  # any other might be a list
_NUMBER = r"[-+]?[0-9][0-9_]*(?:\.[0-9]+)?"
# Slips with lists and numbers: how they look, what is wrong, and how the value is written instead.
_SLIPS: tuple[tuple[str, str, Callable[[re.Match[str]], str]], ...] = (
    (r"[-+]?0+,[0-9]+", "a number has a decimal point", lambda m: m[0].replace(",", ".")),
    (r"([-+]?)0+([0-9]+)", "a number has no leading zeros", lambda m: m[1] + (m[2].lstrip("0") or "0")),
    (_THOUSANDS, "no commas in numbers", lambda m: m[0].replace(",", "_")),
    (rf"{_NUMBER}(, ?{_NUMBER})+", "a list is put in brackets", lambda m: f"[{m[0]}]"),
    (r"\[[^\[\]{}]*", "close the bracket", lambda m: f"{m[0]}]"),
)
_ASSIGNMENT = "dotted.key=value, e.g. algorithm.learning_rate=1e-4"


def read_text(path: Path) -> str:
    """The text of a recipe file.

    Raises:
        RecipeError: it can't be read, is too large, or is no UTF-8 text.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(
            f"{path}: can't be read",
            expected="a TOML file",
            found=(error.strerror or str(error)).lower(),
            remedy="check the path and its permissions",
        ) from None
    if len(raw) > MAX_BYTES:
        raise RecipeError(
            f"{path}: too large for a recipe",
            expected=f"at most {MAX_BYTES:,} bytes",
            found="more",
            remedy="erl recipes show cartpole_ppo prints a recipe to compare with",
        )
    try:
        return raw.decode("utf-8-sig")  # some editors put a byte order mark in front
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError(
            f"{path}: line {line}: not a text file",
            expected="UTF-8",
            found=f"byte 0x{raw[error.start]:02x}",
            remedy="save it as UTF-8, or give the path of a recipe",
        ) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The raw tables of a TOML file.

    Raises:
        RecipeError: it can't be read, or is no TOML.
    """
    return parse(read_text(path), str(path))


def parse(text: str, source: str) -> dict[str, Any]:
    """TOML text to tables; `source` names it in messages.

    Raises:
        RecipeError: it is no TOML, with line, column and the line itself.
    """
    _check_depth(text, source)
    try:
        return tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise _syntax_error(str(error), text, source) from None
    except ValueError:  # Python's own limit on the digits of an int
        digits = re.search(r"[0-9_]{1000,}", text)
        start = digits.start() if digits else 0
        raise RecipeError(
            f"{source}: line {text.count(chr(10), 0, start) + 1}: a number that is too long",
            expected="numbers of 64 bits",
            found=shorten(printable(_line_at(text, start))),
            remedy="take a smaller number",
        ) from None


def _check_depth(text: str, source: str) -> None:
    depth = dots = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in "[{":
            depth += 1
        elif token in "]}":
            depth = max(depth - 1, 0)
        dots = dots + 1 if token == "." else 0 if token in "=,\n" else dots
        if max(depth, dots) >= MAX_DEPTH:
            raise RecipeError(
                f"{source}: line {text.count(chr(10), 0, match.start()) + 1}: nested too deep",
                expected=f"tables and lists nested less than {MAX_DEPTH} deep",
                found=shorten(printable(_line_at(text, match.start()))),
                remedy="a recipe needs three levels",
            )


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    return text[start : start + 500].split("\n")[0].strip()


def _syntax_error(message: str, text: str, source: str) -> RecipeError:
    place = _PLACE.search(message)
    what = message[: place.start()] if place else message
    what = re.sub(r"\((('[^']*',? ?)+)\)", lambda match: ".".join(re.findall("'([^']*)'", match[1])), what)
    what = what[:1].lower() + what[1:]
    lines = text.splitlines() or [""]
    if place and place[1]:
        number, column = int(place[1]), int(place[2])
    else:
        number, column = len(lines), len(lines[-1]) + 1
    line = lines[min(number, len(lines)) - 1]
    slip = _slip(line.partition("=")[2].partition("#")[0])
    if len(line.strip()) > 60 and column > 40:  # show the part that matters of a long line
        line = "..." + line[column - 30 :]
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, message)), None)
    return RecipeError(
        f"{source}: line {number}, column {column}: {printable(what)}",
        expected="TOML: key = value lines under [section] headers",
        found=shorten(printable(line.strip())) or "the end of the file",
        remedy=(": ".join(slip) if slip else remedy) or "erl recipes show cartpole_ppo prints a recipe to compare with",
    )


def merge(data: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """`data` with `dotted.key=TOML value` entries set, in order; the originals stay as they are.

    Raises:
        RecipeError: an entry is no assignment, its value no TOML, or its key lies below a value that is no table.
    """
    for override in overrides:
        key, equals, value = override.partition("=")
        path = _key_path(key.strip()) if equals else None
        if path is None:
            part = re.fullmatch(r"([A-Za-z0-9_.-]+)\[[0-9]+\].*", key.strip()) if equals else None
            raise RecipeError(
                f"--set {shorten(printable(override))}: not an assignment",
                expected=_ASSIGNMENT,
                found="no = sign" if not equals else f"the key {shorten(printable(key.strip())) or 'is empty'}",
                remedy=f"set the list as a whole: --set '{part[1]}=[...]'" if part else "give --set once for each key",
            )
        data = _assign(data, path, _value(path, value.strip()), path)
    return data


def _key_path(key: str) -> list[str] | None:
    """The parts of a dotted key, which may be quoted as in TOML; None where it is no key."""
    if re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){0,15}", key):
        return key.split(".")
    if "\n" in key:
        return None
    try:
        table: Any = parse(f"{key} = 0", "")
    except RecipeError:
        return None
    path = []
    while isinstance(table, dict):
        [(part, table)] = table.items()
        path.append(part)
    return path


def _value(path: list[str], text: str) -> Any:  # noqa: ANN401 - any TOML value
    key = dotted(path)
    try:
        tables = parse(f"value = {text}", "")
        if len(tables) == 1:
            return tables["value"]
    except RecipeError:
        if re.fullmatch(r"[A-Za-z_./~][^\s\"'\[\]{},=#]*", text):  # a shell has eaten the quotes of a plain word
            return text
    slip = _slip(text)
    meant = f"{slip[0]}: --set {shlex.quote(f'{key}={slip[1]}')}" if slip else None
    raise RecipeError(
        f"--set {key}: not a TOML value",
        expected='a number, true, false, "text", a [list] or a {table}',
        found=shorten(printable(text)) or "nothing after the = sign",
        remedy=wrap(meant or f"quote text twice: --set '{key}=\"text\"'"),
    )


def _slip(text: str) -> tuple[str, str] | None:
    """What is wrong with a value that is no TOML, and how it is written, where it shows what was meant."""
    text = text.strip()
    for pattern, wrong, right in _SLIPS if len(text) <= LONGEST_SLIP else ():
        match = re.fullmatch(pattern, text)
        if match:
            return wrong, printable(right(match))
    return None


def _assign(data: dict[str, Any], rest: list[str], value: Any, path: list[str]) -> dict[str, Any]:  # noqa: ANN401
    head, *rest = rest
    if not rest:
        return {**data, head: value}
    inner = data.get(head, {})
    if isinstance(inner, dict):
        return {**data, head: _assign(inner, rest, value, path)}
    parent = dotted(path[: len(path) - len(rest)])
    whole = "[...]" if isinstance(inner, list) else f"{{ {dotted(rest)} = ... }}"
    raise RecipeError(
        f"--set {dotted(path)}: {parent} is not a table",
        expected=f"a table under {parent}",
        found=found(inner),
        remedy=f"set it as a whole: --set '{parent}={whole}'",
    )
