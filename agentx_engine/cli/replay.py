"""agentx-engine replay: recorded sessions against a server."""

from __future__ import annotations

import sys

from agentx_engine.cli.flags import build_parser
from agentx_engine.cli.main import EXIT_CODES
from agentx_engine.cli.parser import UsageError
from agentx_engine.cli.settings import ReplaySettings, resolve

PROG = "agentx-engine replay"
EXAMPLES = """\
examples:
  agentx-engine replay
  agentx-engine replay --url http://127.0.0.1:8000 --corpus traces/ --concurrency 64 --duration 600
  agentx-engine replay --url http://a:8000 --url http://b:8000 --corpus traces.jsonl.zst --out run1
  agentx-engine replay --scenario agentx --unsafe-override --url http://a:8000 --corpus traces/

"""


def _check_urls(settings: ReplaySettings) -> None:
    """Before anything is made or started, so that a mistyped URL costs nothing."""
    from agentx_engine.transport.endpoint import EndpointError, parse_base_url

    for url in settings.urls:
        try:
            parse_base_url(url, settings.endpoint_path)
        except EndpointError as error:
            raise UsageError(f"--url: {error}") from None


def main(argv: list[str]) -> int:
    settings = resolve(build_parser(PROG, EXAMPLES + EXIT_CODES).parse_args(argv))
    _check_urls(settings)
    import uvloop

    from agentx_engine.cli.session import Session

    target = sys.stderr if settings.json_output else sys.stdout
    return uvloop.run(Session(settings, sys.stdout, target).run())
