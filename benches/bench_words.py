"""Prompt words: how fast text is made, against copying the same text.

pytest benches/bench_words.py --benchmark-enable
"""

import numpy as np
import pytest

from agentx_engine.prompt import default_pool

WORDS = 142_000  # of a typical prompt at the end of a session
BLOCK = 64


@pytest.mark.benchmark(group=f"{WORDS} words")
@pytest.mark.parametrize("how", ["blocks of 64", "one run", "copy (reference)"])
def test_text(benchmark, how):
    pool = default_pool()
    ids = np.arange(WORDS // BLOCK, dtype=np.int32)
    text = pool.blocks(1, 2, ids, BLOCK)
    if how == "blocks of 64":
        benchmark(pool.blocks, 1, 2, ids, BLOCK)
    elif how == "one run":
        benchmark(pool.fill, 1, WORDS)
    else:
        benchmark(bytearray, text)
    benchmark.extra_info["M words/s"] = round(WORDS / benchmark.stats["min"] / 1e6)
    print(f"\n{how}: {WORDS / benchmark.stats['min'] / 1e6:.0f} M words/s")
