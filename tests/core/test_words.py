"""Word runs against a model in Python: what is drawn, how it is laid out, and that nothing else matters."""

import hashlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx_engine.core.words import WordPool, words_key

WORDS = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]
FIRST = ["H", "II", "JJJJJJJ"]
U64 = st.integers(0, 2**64 - 1)
MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def mix(x):
    """SplitMix64's finaliser."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def model_key(seed, scope, id_):
    x = mix((seed + GAMMA) & MASK)
    x = mix(((x ^ scope) + GAMMA) & MASK)
    return mix(((x ^ id_) + GAMMA) & MASK)


def model(key, n):
    out = []
    for i in range(n):
        draw = mix((key + GAMMA * (i // 2 + 1)) & MASK) >> (32 * (i % 2)) & 0xFFFFFFFF
        words = WORDS if i else FIRST
        out.append(" " + words[draw * len(words) >> 32])
    return "".join(out).encode()


@pytest.fixture(scope="module")
def pool():
    return WordPool(WORDS, FIRST)


def test_splitmix_vector():
    # First outputs of SplitMix64 from seed 0 (the generator's published reference implementation).
    assert [mix(GAMMA * i & MASK) for i in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@settings(deadline=None)
@given(U64, U64, U64)
def test_key(seed, scope, id_):
    assert words_key(seed, scope, id_) == model_key(seed, scope, id_)


@settings(deadline=None)
@given(U64, st.integers(0, 70))
def test_fill(key, n):
    assert WordPool(WORDS, FIRST).fill(key, n) == model(key, n)


@settings(deadline=None)
@given(U64, U64, st.lists(st.integers(0, 2**31 - 1), max_size=5), st.integers(0, 9))
def test_blocks(seed, scope, ids, block_size):
    expected = b"".join(model(model_key(seed, scope, i), block_size) for i in ids)
    assert WordPool(WORDS, FIRST).blocks(seed, scope, np.array(ids, dtype=np.int32), block_size) == expected


def test_a_run_is_the_start_of_a_longer_one(pool):
    long = pool.fill(99, 5000)
    assert long.startswith(pool.fill(99, 1))
    assert long.startswith(pool.fill(99, 4999))
    assert long == model(99, 5000)


def test_blocks_do_not_depend_on_their_neighbours(pool):
    ids = np.arange(200, dtype=np.int32)
    whole = pool.blocks(1, 2, ids, 64)
    assert whole == b"".join(pool.blocks(1, 2, ids[i : i + 1], 64) for i in range(200))
    assert pool.blocks(1, 2, ids[::-3], 64) == b"".join(
        pool.blocks(1, 2, ids[i : i + 1], 64) for i in ids[::-3]
    )


def test_every_word_is_drawn_equally_often(pool):
    n = 70_000
    counts = dict.fromkeys(WORDS, 0)
    for word in pool.fill(5, n + 1).decode().split()[1:]:
        counts[word] += 1
    chi2 = sum((c - n / 7) ** 2 / (n / 7) for c in counts.values())
    assert chi2 < 22.5  # 0.1 % point with 6 degrees of freedom; the draw is fixed, so this cannot flicker


def test_seed_scope_and_id_all_matter(pool):
    keys = {words_key(a, b, c) for a in range(8) for b in range(8) for c in range(8)}
    assert len(keys) == 512
    assert len({pool.fill(k, 40) for k in keys}) == 512


@pytest.mark.parametrize("bad", ["", "eightlet", "x" * 300])
def test_words_of_other_lengths_are_refused(bad):
    with pytest.raises(ValueError, match="at position 2 does not have"):
        WordPool(["a", bad], FIRST)
    with pytest.raises(ValueError, match="at position 9 does not have"):
        WordPool(WORDS, ["a", bad])


@pytest.mark.parametrize(("words", "first"), [([], FIRST), (WORDS, []), ([], [])])
def test_empty_lists_are_refused(words, first):
    with pytest.raises(ValueError, match="needs words"):
        WordPool(words, first)


def test_bad_sizes_and_types(pool):
    for n in (-1, 2**60):
        with pytest.raises(ValueError, match="cannot be made"):
            pool.fill(1, n)
    with pytest.raises(ValueError, match="cannot be made"):
        pool.blocks(1, 1, np.zeros(4, dtype=np.int32), 2**61)
    with pytest.raises(ValueError, match="Buffer dtype mismatch"):
        pool.blocks(1, 1, np.zeros(4, dtype=np.int64), 4)
    with pytest.raises(OverflowError):
        pool.fill(-1, 1)


def test_threads_share_a_pool(pool):
    expected = [pool.fill(k, 20_000) for k in range(4)]
    got = [b""] * 4

    def work(k):
        for _ in range(20):
            got[k] = pool.fill(k, 20_000)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == expected


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_other_processes_make_the_same_bytes(hash_seed):
    code = (
        "import hashlib, numpy as np; from agentx_engine.core.words import WordPool;"
        f"p = WordPool({WORDS}, {FIRST});"
        "print(hashlib.sha256(p.blocks(3, 4, np.arange(50, dtype=np.int32), 64)).hexdigest())"
    )
    env = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    out = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=True
    )
    text = WordPool(WORDS, FIRST).blocks(3, 4, np.arange(50, dtype=np.int32), 64)
    assert out.stdout.strip() == hashlib.sha256(text).hexdigest()
