"""The command line, and the server as a child process."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from agentx_engine.errors import UserError
from agentx_engine.sim import start_simulated_server
from agentx_engine.sim.model import SimOptions, TemplateTokens
from agentx_engine.sim.process import ChildError
from agentx_engine.sim.requestlog import read_request_log
from agentx_engine.sim.server_main import API_KEY_VARIABLE, build_parser, main, parse_options


def post(url: str, key: str | None = None, **fields) -> bytes:
    body = {"model": "simulated", "messages": [{"role": "user", "content": "a b"}], "max_tokens": 2, **fields}
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        return response.read()


def test_flags_and_options_agree(monkeypatch):
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    assert parse_options([]) == SimOptions()
    flags = {a.dest for a in build_parser()._actions} - {"help"}
    assert flags == set(SimOptions.__struct_fields__)
    options = parse_options(["--model=a", "--model=b", "--template-overhead=3", "--no-usage", "--port=1"])
    assert options.model == ("a", "b") and options.no_usage and options.port == 1
    assert options.template_overhead == TemplateTokens.parse("3")


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--error-rate=1.5", "--error-rate: expected 0 to 1, not 1.5"),
        ("--error-rate=nan", "--error-rate: expected 0 to 1"),
        ("--port=65536", "--port: expected 0 to 65535"),
        ("--block-size=0", "--block-size: expected 1 to 1000000000000, not 0"),
        ("--itl-ms=inf", "--itl-ms: expected 0 to 1e+09"),
        ("--itl-ms=1e300", "--itl-ms: expected 0 to 1e+09, not 1e300"),
        ("--seed=99999999999999999999", "--seed: expected 0 to 18446744073709551615"),
        ("--cache-tokens=9999999999999", "--cache-tokens: expected 0 to 1000000000000"),
        ("--template-overhead=9999999999", "--template-overhead: expected a number"),
        ("--model=", "--model: the value is empty"),
        ("--log=", "--log: the value is empty"),
        ("--max-running=few", "--max-running: expected a number, not 'few'"),
        ("--template-overhead=users=3", "--template-overhead: expected a number, or NAME=NUMBER"),
        ("--error-as=404", "--error-as: invalid choice"),
        ("--what", "unrecognized arguments: --what"),
    ],
)
def test_a_wrong_flag_is_named(flag, said):
    with pytest.raises(UserError) as e:
        parse_options([flag])
    assert said in str(e.value)


def test_an_address_or_log_that_cannot_be_had_is_named(tmp_path):
    with pytest.raises(UserError, match=r"--log .*nowhere.*: No such file or directory"):
        main(["--log", str(tmp_path / "nowhere" / "x")])
    with pytest.raises(UserError, match=r"--host 192\.0\.2\.1 .*cannot listen there"):
        main(["--host", "192.0.2.1"])


def test_help_needs_no_web_framework():
    script = (
        "import sys\nfrom agentx_engine.sim.server_main import main\n"
        "try: main(['--help'])\nexcept SystemExit as e: assert e.code == 0\n"
        "assert not {'aiohttp', 'numpy', 'uvloop', 'msgspec'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "--template-overhead" in run.stdout


def test_a_child_serves_logs_and_ends_cleanly(tmp_path):
    log = tmp_path / "log.jsonl"
    server = start_simulated_server(
        model=["simulated", "other"], log=log, ttft_ms=0, itl_ms=0, api_key="hunter2", no_usage=True
    )
    with server:
        answer = json.loads(post(server.url, key="hunter2", ignore_eos=True))
        process = server._running
    assert answer["usage"] is None and len(answer["choices"][0]["message"]["content"].split()) == 2
    assert process.returncode == 0
    (record,) = read_request_log(log)
    assert (record.ended, record.prompt_tokens, record.completion_tokens) == ("length", 2, 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_end_it_and_nothing_is_printed(number):
    command = [sys.executable, "-P", "-m", "agentx_engine.sim.server_main"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        ready = json.loads(child.stdout.readline())
        assert ready["event"] == "ready" and ready["port"] > 0
        child.send_signal(number)
        rest, errors = child.communicate(timeout=20)
    assert (child.returncode, rest, errors) == (0, "", "")


def test_what_the_server_refuses_is_the_childs_error_and_keeps_the_key():
    with pytest.raises(TypeError, match="no option 'colour'"):
        start_simulated_server(colour="red")
    with (
        pytest.raises(ChildError, match="--error-rate: expected 0 to 1") as e,
        start_simulated_server(error_rate=7, api_key="hunter2"),
    ):
        pass
    assert "hunter2" not in str(e.value) and "Traceback" not in str(e.value)
