"""Id lists: JSON bytes to int32, against msgspec and json on the same list; common prefix, against numpy.

pytest benches/bench_ids.py --benchmark-enable
"""

import json

import msgspec
import numpy as np
import pytest

from agentx_engine.core.ids import common_prefix, parse_ids

IDS = list(range(9_000, 24_000))  # a million-token prompt
RAW = msgspec.json.encode(IDS)
DECODER = msgspec.json.Decoder(list[int])
PARSERS = {
    "parse_ids": parse_ids,
    "msgspec list[int] (reference)": lambda raw: np.array(DECODER.decode(raw), dtype=np.int32),
    "json (reference)": lambda raw: np.array(json.loads(raw), dtype=np.int32),
}


@pytest.mark.benchmark(group=f"parse {len(IDS)} ids")
@pytest.mark.parametrize("how", PARSERS)
def test_parse(benchmark, how):
    assert benchmark(PARSERS[how], RAW).tolist() == IDS
    print(f"\n{how}: {len(RAW) / benchmark.stats['min'] / 1e9:.2f} GB/s")


def numpy_prefix(a, b):
    differ = np.flatnonzero(a[: b.size] != b[: a.size])
    return differ[0] if differ.size else min(a.size, b.size)


@pytest.mark.benchmark(group=f"common prefix of {len(IDS)} ids")
@pytest.mark.parametrize("how", [common_prefix, numpy_prefix], ids=["common_prefix", "numpy (reference)"])
def test_prefix(benchmark, how):
    a, b = np.array(IDS, dtype=np.int32), np.array([*IDS, 1], dtype=np.int32)
    assert benchmark(how, a, b) == len(IDS)
    print(f"\n{how.__name__}: {a.nbytes / benchmark.stats['min'] / 1e9:.2f} GB/s of each list")
