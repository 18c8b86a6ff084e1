"""Named rule sets for runs whose results are compared: values, locks, and what makes a run valid. Pure."""

from agentx_engine.scenario.apply import Applied, Violation, apply, draw_seed, scenario_named
from agentx_engine.scenario.rules import SCENARIOS, Scenario
from agentx_engine.scenario.threshold import FailedRequestThreshold
from agentx_engine.scenario.validity import Coverage, RunFacts, Validity, coverage, validity
from agentx_engine.scenario.vocabulary import SETTINGS, Setting

__all__ = [
    "SCENARIOS",
    "SETTINGS",
    "Applied",
    "Coverage",
    "FailedRequestThreshold",
    "RunFacts",
    "Scenario",
    "Setting",
    "Validity",
    "Violation",
    "apply",
    "coverage",
    "draw_seed",
    "scenario_named",
    "validity",
]
