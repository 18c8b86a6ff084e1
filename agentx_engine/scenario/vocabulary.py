"""What a run can be asked for, in words that belong to no command line.

A scenario is stated over these names, so that its rules read the same whichever program gave the values. Each
has the flag of this engine that sets it and, where it differs, the flag of the official harness, which is the
name under which its users know a violation.

A value that stands for "off", "all" or "no limit" is None. A name that is absent was not set by the user;
that is another thing than None. Ratios are fractions, times are seconds unless the name says otherwise.

Source: agentx-v1, sections 8.1 and 8.2.
"""

from __future__ import annotations

from typing import Final

import msgspec

SYNTHETIC: Final = "synthetic"  # value of `loader`: no corpus was named
LOCAL: Final = "weka_trace"  # value of `loader`: a file or folder on this host
REPOSITORY: Final = "weka_hf"  # value of `loader`: a repository of traces, named by `hf_dataset`
AGENTIC_REPLAY: Final = "agentic-replay"  # the only value of `timing_mode` that this engine has
RANDOM: Final = "random"  # value of `seed`: 63 random bits, to be drawn and logged by the caller


class Setting(msgspec.Struct, frozen=True):
    """One thing that a run can be asked for.

    flag: how a user of this engine sets it; None = not at all, it follows from others.
    official: the harness's name for the same, where it is another one.
    refused: this engine has no such mode; the flag is known so that it is refused by name, not as a typo.
    """

    name: str
    flag: str | None
    meaning: str
    official: str | None = None
    refused: bool = False

    @property
    def label(self) -> str:
        """What to call it when talking to the user."""
        return self.flag or self.official or self.name


_SETTINGS: Final = (
    # How load is timed.
    Setting(
        "timing_mode",
        None,
        "how requests are timed; agentic-replay is as recorded",
        official="--request-rate / --user-centric-rate / --fixed-schedule",
    ),
    Setting("request_rate", "--request-rate", "requests per second, not the recording's", refused=True),
    Setting("arrival_pattern", "--arrival-pattern", "constant, poisson, gamma", refused=True),
    Setting("user_centric_rate", "--user-centric-rate", "requests per second and user", refused=True),
    Setting("fixed_schedule", "--fixed-schedule", "absolute times of a schedule", refused=True),
    Setting("adaptive_scale", "--adaptive-scale", "more users until a limit is met", refused=True),
    Setting("ignore_trace_delays", "--ignore-trace-delays", "send as fast as possible", refused=True),
    Setting(
        "inter_turn_delay_cap_s",
        "--inter-turn-delay-cap",
        "shorten every recorded pause",
        official="--inter-turn-delay-cap-seconds",
        refused=True,
    ),
    Setting("sweep", "--sweep", "several concurrencies in one run", refused=True),
    Setting("concurrency", "--concurrency", "live sessions"),
    Setting("duration_s", "--duration", "length of the measured phase", official="--benchmark-duration"),
    Setting("grace_s", "--grace", "for requests in flight at its end", official="--benchmark-grace-period"),
    Setting("request_count", "--request-count", "nothing is sent after so many"),
    Setting("seed", "--seed", "of the schedule", official="--random-seed"),
    Setting(
        "system_idle_gap_cap_s",
        "--system-idle-gap-cap",
        "longest time without any request in flight",
        official="--system-idle-gap-cap-seconds",
    ),
    Setting(
        "trace_idle_gap_cap_s",
        "--trace-idle-gap-cap",
        "longest time for which one live tree is idle",
        official="--trace-idle-gap-cap-seconds",
    ),
    Setting("trajectory_start_min_ratio", "--trajectory-start-min-ratio", "earliest start in a session"),
    Setting("trajectory_start_max_ratio", "--trajectory-start-max-ratio", "latest start in a session"),
    Setting("burst_phase_starts", "--burst-phase-starts", "all lanes start a phase at once"),
    Setting("warmup_requests_per_lane", "--warmup-requests-per-lane", "on top of the primers"),
    Setting(
        "warmup_duration_s",
        "--warmup-duration",
        "warm up for a time, not for a number of requests",
        official="--agentic-cache-warmup-duration",
    ),
    Setting("warmup_grace_s", "--warmup-grace-period", "for warmup requests in flight at its end"),
    # What is sent.
    Setting("loader", "--corpus", "where the traces are from", official="--input-file (loader)"),
    Setting("hf_dataset", "--hf-weka-dataset", "repository of the traces"),
    Setting("entries", "--entries", "first so many traces", official="--num-dataset-entries"),
    Setting("max_context", "--max-context", "leave larger traces out", official="--max-context-length"),
    Setting("synthesis_max_isl", "--synthesis-max-isl", "cut prompts", refused=True),
    Setting("max_output_tokens", "--max-output-tokens", "cap of outputs", official="--synthesis-max-osl"),
    Setting("cache_bust", "--cache-bust", "marker that makes each tree's prompts its own"),
    Setting("streaming", "--no-streaming", "answers as event streams", official="--streaming", refused=True),
    Setting(
        "ignore_eos",
        "--no-ignore-eos, or ignore_eos in --extra-body",
        "value of the member ignore_eos in the body",
        official="extra_inputs.ignore_eos",
    ),
    Setting("endpoint_type", "--endpoint-type", "which API is called"),
    Setting("model", "--model", "served model name"),
    Setting("tokenizer", "--tokenizer", "checks the words of the prompts"),
    Setting("headers", "--header", "on every request"),
    Setting("connections", "--connections", "reuse", official="--connection-reuse-strategy"),
    Setting("tcp_user_timeout_ms", "--tcp-user-timeout", "for unacknowledged bytes"),
    # How failures are taken.
    Setting("failed_request_threshold", "--failed-request-threshold", "share of failures that ends the run"),
    Setting("fail_fast", "--fail-fast", "the first failure ends the run"),
    Setting("metric_coverage", None, "how late the last token must have been seen, as a share"),
    # What is counted and shown.
    Setting(
        "server_token_counts",
        None,
        "token counts are the server's own; this engine has no others",
        official="--use-server-token-count",
    ),
    Setting("slice_duration_s", "--slice-duration", "width of the slices of the curves over time"),
    Setting("stats_interval_s", "--stats-interval", "between two lines of live statistics"),
    Setting("live_metrics", None, "metrics are shown while the run goes on"),
    Setting("gpu_telemetry", "--gpu-telemetry", "counters of the GPUs"),
    Setting("dataset_timeout_s", None, "for preparing the corpus and the run"),
    Setting("unsafe_override", "--unsafe-override", "run against the rules; the result is then not valid"),
)

SETTINGS: Final[dict[str, Setting]] = {setting.name: setting for setting in _SETTINGS}
