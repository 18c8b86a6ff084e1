"""A rule set applied to what the user set: the values of the run, and everything that breaks the rules.

All violations are found at once, so that a run is refused once and not five times.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec

from agentx_engine.errors import UserError
from agentx_engine.scenario.rules import EXCLUSIVE, SCENARIOS, Derived, Lock, Must, Scenario
from agentx_engine.scenario.vocabulary import RANDOM, SETTINGS, SYNTHETIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

UNSAFE_OVERRIDE: Final = "unsafe_override"  # the setting, and the reason why a result is not valid
SEED_BITS: Final = 63
FALSY_WORDS: Final = frozenset({"", "0", "false", "no", "off", "f", "n", "none", "null"})


class Violation(msgspec.Struct, frozen=True):
    """A setting that breaks a rule.

    row: the rule's number. flag: the official harness's name for the violation. label: what the user of
    this engine gave or has to give. given: the value as text, None if there is none to show. required:
    what the rule demands, as the end of a sentence.
    """

    row: str
    flag: str
    setting: str
    label: str
    given: str | None
    required: str
    why: str
    overridable: bool

    def __str__(self) -> str:
        value = "" if self.given is None else f" {self.given}"
        official = "" if self.label in self.flag.split(" / ") else f" (official: {self.flag})"
        return f"{self.label}{value}: {self.required}. {self.why}{official}"


class Applied(msgspec.Struct, frozen=True):
    """A run under a scenario.

    effective: every setting that the user or the scenario gave a value. filled: those that the scenario
    gave. A run may start if `refusal` is None.
    """

    scenario: str
    effective: dict[str, object]
    filled: tuple[str, ...]
    violations: tuple[Violation, ...]
    override: bool

    @property
    def refused(self) -> tuple[Violation, ...]:
        """The violations that keep the run from starting."""
        return tuple(v for v in self.violations if not (self.override and v.overridable))

    @property
    def refusal(self) -> str | None:
        """Why the run may not start, for the user: every offending flag, and what to do. None: it may."""
        refused = self.refused
        if not refused:
            return None
        count = "one setting breaks" if len(refused) == 1 else f"{len(refused)} settings break"
        lines = [f"--scenario {self.scenario}: {count} its rules:", *(f"  {v}" for v in refused)]
        stuck = [v for v in refused if not v.overridable]
        if not stuck:
            lines.append(
                "Change them, or give --unsafe-override to run all the same: the result is then marked "
                "submission_valid = false."
            )
        elif len(stuck) == len(refused):
            lines.append("Change them; --unsafe-override does not help here.")
        else:
            names = ", ".join(dict.fromkeys(v.label for v in stuck))
            lines.append(f"Change them; --unsafe-override helps for all but {names}.")
        return "\n".join(lines)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was overridden, a sentence each."""
        return tuple(f"overridden: {v}" for v in self.violations if self.override and v.overridable)

    @property
    def invalid_reasons(self) -> tuple[str, ...]:
        """Reasons that are known before the run. An override that overrides nothing does no harm."""
        return (UNSAFE_OVERRIDE,) if self.warnings else ()


def scenario_named(name: str) -> Scenario:
    """The rule set of that name. UserError says which there are."""
    try:
        return SCENARIOS[name]
    except KeyError:
        known = ", ".join(SCENARIOS)
        raise UserError(f"--scenario: there is no scenario {name!r}; choose one of {known}") from None


def apply(scenario: Scenario, given: Mapping[str, object]) -> Applied:
    """What a run is under a scenario, if the user set `given` and nothing else.

    `given` maps names of the vocabulary to values; what the user did not set is absent. Pure: a seed that
    is to be random stays `vocabulary.RANDOM`, see `draw_seed`. ValueError for a name that is not in the
    vocabulary, since that is our mistake and not the user's.
    """
    unknown = sorted(set(given) - set(SETTINGS))
    if unknown:
        raise ValueError(f"not in the vocabulary of scenarios: {', '.join(unknown)}")
    chosen = {name: value for name, value in given.items() if name != UNSAFE_OVERRIDE}
    effective = dict(chosen)
    for lock in scenario.locks:
        if lock.must in (Must.EQUAL, Must.TRUTHY) and lock.when is None:
            effective.setdefault(lock.setting, lock.bound)
    for fill in scenario.fills:
        wanted = fill.unless not in chosen and (fill.only_with is None or fill.only_with in chosen)
        if wanted and fill.setting not in effective:
            effective[fill.setting] = (
                derive(fill.value, effective) if isinstance(fill.value, Derived) else fill.value
            )
    return Applied(
        scenario=scenario.name,
        effective=effective,
        filled=tuple(name for name in effective if name not in chosen),
        violations=tuple(_violations(scenario.locks, effective, chosen)),
        override=bool(given.get(UNSAFE_OVERRIDE)),
    )


def draw_seed(effective: Mapping[str, object], random_bits: Callable[[int], int]) -> int | None:
    """The seed of a run, drawn if the scenario wants a random one; to be logged by the caller.

    `random_bits(n)` gives n random bits, as `secrets.randbits` does. None if there is no seed at all.
    """
    seed = effective.get("seed")
    if seed == RANDOM:
        return random_bits(SEED_BITS)
    return seed if isinstance(seed, int) else None


def derive(what: Derived, effective: Mapping[str, object]) -> object:
    """The value of a computed fill."""
    assert what is Derived.TIMED_WARMUP_GRACE
    grace, timed = _number(effective["grace_s"]), _number(effective["warmup_duration_s"])
    return max(grace, min(timed, 300.0))


def _violations(
    locks: Iterable[Lock], effective: Mapping[str, object], chosen: Mapping[str, object]
) -> Iterable[Violation]:
    for lock in locks:
        if lock.when is not None and effective.get(lock.when[0]) != lock.when[1]:
            continue
        if not _holds(lock, effective.get(lock.setting)):
            yield _violation(lock, chosen)
    for one, other in EXCLUSIVE:
        if _used(chosen.get(one)) and _used(chosen.get(other)):
            yield Violation(
                row="exclusive",
                flag=f"{SETTINGS[one].official or SETTINGS[one].label} / {SETTINGS[other].label}",
                setting=one,
                label=f"{SETTINGS[one].label} / {SETTINGS[other].label}",
                given=f"{_shown(chosen[one])} and {_shown(chosen[other])}",
                required="must not both be given",
                why="They are two ways to say how long to warm up.",
                overridable=False,
            )


def _violation(lock: Lock, chosen: Mapping[str, object]) -> Violation:
    return Violation(
        row=lock.row,
        flag=lock.flag,
        setting=lock.setting,
        label=SETTINGS[lock.setting].label,
        given=_given(lock, chosen),
        required=_required(lock),
        why=lock.why,
        overridable=lock.overridable,
    )


def _given(lock: Lock, chosen: Mapping[str, object]) -> str | None:
    """The offending value as text, where it says more than the flag does."""
    value = chosen.get(lock.setting)
    if lock.setting not in chosen or isinstance(value, bool) or lock.must is Must.NOT_EQUAL:
        return None
    return _shown(value)


def _holds(lock: Lock, value: object) -> bool:
    bound = lock.bound
    match lock.must:
        case Must.EQUAL:
            return value == bound
        case Must.NOT_EQUAL:
            return value != bound
        case Must.AMONG:
            return isinstance(bound, tuple) and value in bound
        case Must.AT_LEAST:
            return isinstance(value, int | float) and value >= _number(bound)
        case Must.TRUTHY:
            return value.strip().lower() not in FALSY_WORDS if isinstance(value, str) else bool(value)
        case Must.UNUSED:
            return not _used(value)


def _required(lock: Lock) -> str:
    """What a rule demands, as the end of a sentence that begins with the flag."""
    unit = " s" if lock.setting.endswith("_s") else ""
    match lock.must:
        case Must.EQUAL if not isinstance(lock.bound, bool):
            return f"must be {_shown(lock.bound)}{unit}"
        case Must.EQUAL | Must.TRUTHY:
            return "must not be switched off"
        case Must.NOT_EQUAL if lock.bound == SYNTHETIC:
            return "a corpus must be named"
        case Must.NOT_EQUAL | Must.AMONG:
            return "must be one of the pinned corpora"
        case Must.AT_LEAST:
            return f"must be at least {_shown(lock.bound)}{unit}"
        case Must.UNUSED:
            return "must not be given"


def _used(value: object) -> bool:
    return value is not None and value is not False


def _shown(value: object) -> str:
    """A value as a user writes it."""
    if value is None:
        return "off"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise ValueError(f"a number is expected, not {value!r}")
    return value
