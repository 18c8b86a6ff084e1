"""argparse with one-line errors, hints for near misses, and the value types of our flags.

Imported for every command, `--help` included, so nothing heavy may be imported here.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from agentx_engine.errors import UserError

# What the same thing is called in other load generators.
SYNONYMS = {
    "--agentic-cache-warmup-duration": "--warmup-duration",
    "--agentic-warmup-grace-period": "--warmup-grace-period",
    "--artifact-dir": "--out",
    "--base-url": "--url",
    "--benchmark-duration": "--duration",
    "--benchmark-grace-period": "--grace",
    "--connection-reuse-strategy": "--connections",
    "--custom-dataset-type": "--corpus",
    "--dataset": "--corpus",
    "--endpoint": "--endpoint-path",
    "--extra-inputs": "--extra-body",
    "--host": "--url",
    "--input-file": "--corpus",
    "--max-concurrency": "--concurrency",
    "--max-context-length": "--max-context",
    "--num-dataset-entries": "--entries",
    "--num-prompts": "--request-count",
    "--num-requests": "--request-count",
    "--output": "--out",
    "--output-artifact-dir": "--out",
    "--output-dir": "--out",
    "--public-dataset": "--corpus",
    "--random-seed": "--seed",
    "--request-timeout-seconds": "--total-timeout",
    "--result-dir": "--out",
    "--synthesis-max-osl": "--max-output-tokens",
    "--system-idle-gap-cap-seconds": "--system-idle-gap-cap",
    "--trace": "--corpus",
    "--trace-idle-gap-cap-seconds": "--trace-idle-gap-cap",
}


class UsageError(UserError):
    """The command line cannot be understood."""


class Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse prints its usage and exits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ((?:-\w/)?--?[\w-]+)(?:/--?[\w-]+)*: ", r"\1: ", message)
        raise UsageError(f"{message} (see {self.prog} --help)")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Refuses what no flag means: an empty value, as of an unset variable, and bytes that are no text."""
        if action.nargs == argparse.PARSER:  # the arguments of a command, which looks at them itself
            return super()._get_value(action, arg_string)
        if not arg_string:
            raise argparse.ArgumentError(action, "the value is empty")
        if action.type is not path and not arg_string.isascii():
            try:
                arg_string.encode()
            except UnicodeEncodeError:
                raise argparse.ArgumentError(action, "the value is not UTF-8") from None
        return super()._get_value(action, arg_string)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self._unknown(unknown)
        return parsed

    def _unknown(self, unknown: Sequence[str]) -> NoReturn:
        for text in unknown:
            if text.startswith("-") and len(text) > 1:
                flag = text.partition("=")[0]
                self.error(f"unknown flag {flag}{hint(flag, _options(self))}")
        self.error(f"unexpected argument {unknown[0]!r}")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Every flag of a parser and of its commands."""
    found: list[str] = []
    for action in parser._actions:
        found += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                found += _options(command)
    return found


def hint(word: str, known: Sequence[str]) -> str:
    """', did you mean …?' for the nearest known word, else nothing."""
    meant = SYNONYMS.get(word)
    if meant is None or meant not in known:
        # Without the dashes, which all flags have in common.
        bare = {k.lstrip("-"): k for k in known if k.startswith("--") == word.startswith("--")}
        near = difflib.get_close_matches(word.lstrip("-"), bare, n=1, cutoff=0.7)
        near = [bare[k] for k in near]
        near = near or [k for k in known if word.startswith("--") and len(word) > 4 and k.startswith(word)]
        meant = near[0] if near else None
    return f", did you mean {meant}?" if meant else ""


def path(text: str) -> str:
    """The name of a file or folder, in any bytes; what cannot be decoded is in it as surrogates."""
    return text


# What nobody can mean: beyond these, nanoseconds and the integers of the C side and of JSON would overflow.
MAX_COUNT = 10**12
MAX_TOKENS = 10**9
MAX_LANES = 10**6
MAX_SEED = 2**64 - 1
MAX_DAYS = 3650
MAX_SECONDS = MAX_DAYS * 86400.0


def number_from(low: int, high: int = MAX_COUNT) -> Callable[[str], int]:
    """A type of whole numbers; 1_000 and 1,000 are accepted."""

    def number(text: str) -> int:
        try:
            value = int(text.replace(",", "").replace("_", ""))
        except ValueError:  # also for thousands of digits
            value = low - 1
        if value < low:
            shown = text if re.fullmatch(r"-?[0-9]{1,40}", text) else f"{text[:40]!r}"
            raise argparse.ArgumentTypeError(f"a whole number from {low} is expected, not {shown}")
        if value > high:
            raise argparse.ArgumentTypeError(f"a whole number up to {high:,} is expected, not {text[:40]}")
        return value

    return number


count = number_from(1)
whole = number_from(0)
tokens = number_from(1, MAX_TOKENS)
lanes = number_from(1, MAX_LANES)
per_lane = number_from(0, MAX_LANES)
seed = number_from(0, MAX_SEED)

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds_or_zero(text: str) -> float:
    """Seconds, or a number with ms, s, m or h; at most `MAX_DAYS`."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    unit = _UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        raise argparse.ArgumentTypeError(f"seconds (or 500ms, 10m, 1.5h) are expected, not {text!r}")
    value = float(match[1]) * unit
    if value > MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f"at most 10 years ({MAX_SECONDS:.0f} s) are possible, not {text[:40]!r}"
        )
    return value


def seconds(text: str) -> float:
    """Seconds above 0, or a number with ms, s, m or h."""
    value = seconds_or_zero(text)
    if value < 0.001:
        raise argparse.ArgumentTypeError(f"a time above 0 is expected, not {text!r}")
    return value


def share(text: str) -> float:
    """A fraction from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"a share from 0 to 1 is expected, not {text!r}")
    return value


def or_off(kind: Callable[[str], Any], word: str = "off") -> Callable[[str], Any]:
    """The same values, or None for `word`."""

    def value(text: str) -> Any:
        return None if text == word else kind(text)

    return value


def context(text: str) -> int | str:
    """A number of tokens, or `auto`."""
    return text if text == "auto" else tokens(text)


def path_of_url(text: str) -> str:
    if not re.fullmatch(r"/[!-~]*", text):
        raise argparse.ArgumentTypeError(f"a path that begins with / is expected, not {text!r}")
    return text


def secret(text: str) -> str:
    """An API key: printable ASCII, never repeated in an error."""
    if not re.fullmatch(r"[!-~]+", text):
        raise argparse.ArgumentTypeError("the key must be printable ASCII without spaces")
    return text


_OWN_HEADERS = {
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "x-correlation-id",
    "x-request-id",
}


def header(text: str) -> tuple[str, str]:
    """`Name: value`. The value is not repeated in errors: it may be a secret."""
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        raise argparse.ArgumentTypeError("'Name: value' is expected")
    if not re.fullmatch(r"[\t -~\x80-\xff]*", value):
        raise argparse.ArgumentTypeError(f"the value of {name} has characters that a header cannot hold")
    if name.lower() in _OWN_HEADERS:
        raise argparse.ArgumentTypeError(f"{name} is set by the engine and cannot be replaced")
    return name, value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"there is no {name}")


def json_object(text: str) -> dict[str, Any]:
    """A JSON object. The text is not repeated in errors: it may hold a secret."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    except RecursionError:
        raise argparse.ArgumentTypeError("the JSON is nested too deeply") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("a JSON object like '{\"temperature\": 0}' is expected")
    return value
