"""Id lists against the json module, and where each kind of wrong list is refused."""

import json
import pickle

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx_engine.core.ids import IdsError, common_prefix, parse_ids

IDS = st.lists(
    st.one_of(st.integers(0, 2**31 - 1), st.integers(0, 9), st.integers(10**7, 10**9)), max_size=40
)
SPACE = st.text(alphabet=" \t\r\n", max_size=3)


@settings(deadline=None)
@given(IDS, st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":"), (",\t\t", ":")]), SPACE, SPACE)
def test_lists(ids, separators, before, behind):
    raw = (before + json.dumps(ids, separators=separators) + behind).encode()
    out = parse_ids(raw)
    assert out.dtype == np.int32
    assert out.tolist() == ids


@settings(deadline=None)
@given(st.lists(st.integers(0, 11), max_size=6).map(lambda ks: [10**k % 2**31 for k in ks]))
def test_numbers_of_every_length_at_every_distance_from_the_end(ids):
    assert parse_ids(json.dumps(ids).encode()).tolist() == ids


@settings(deadline=None)
@given(SPACE, st.binary(max_size=20))
def test_any_bytes_are_parsed_as_json_does_or_refused(space, junk):
    raw = space.encode() + b"[" + junk
    try:
        expected = json.loads(raw.decode())
    except ValueError:
        expected = None
    ok = isinstance(expected, list) and all(type(i) is int and 0 <= i < 2**31 for i in expected)
    if ok and b"-" not in raw:  # minus zero, which is an integer to json
        assert parse_ids(raw).tolist() == expected
    else:
        with pytest.raises(IdsError) as error:
            parse_ids(raw)
        assert 0 <= error.value.offset <= len(raw)


@settings(deadline=None)
@given(st.text(alphabet="0123456789,[] -.e", max_size=24))
def test_almost_lists(text):
    test_any_bytes_are_parsed_as_json_does_or_refused.hypothesis.inner_test("", text.encode())


@pytest.mark.parametrize(
    "make", [bytes, bytearray, memoryview, msgspec.Raw, lambda b: memoryview(b"xx" + b)[2:]]
)
def test_any_buffer(make):
    assert parse_ids(make(b"[7,8]")).tolist() == [7, 8]


def test_raw_field_of_a_struct():
    class Request(msgspec.Struct):
        hash_ids: msgspec.Raw

    request = msgspec.json.decode(b'{"hash_ids": [1, 2,\n3] }', type=Request)
    assert parse_ids(request.hash_ids).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("raw", "reason", "offset"),
    [
        (b"", "not a list", 0),
        (b"  ", "not a list", 2),
        (b"null", "not a list", 0),
        (b"5", "not a list", 0),
        (b' {"a":1}', "not a list", 1),
        (b"[", "does not end", 1),
        (b"[1", "does not end", 2),
        (b"[1,", "does not end", 3),
        (b"[1, ", "does not end", 4),
        (b"[12345678", "does not end", 9),
        (b"[1,]", "not an integer", 3),
        (b"[,1]", "not an integer", 1),
        (b"[1,,2]", "not an integer", 3),
        (b"[1 2]", "not an integer", 3),
        (b"[1.0]", "not an integer", 2),
        (b"[1e3]", "not an integer", 2),
        (b"[01]", "not an integer", 1),
        (b"[00000001,2]", "not an integer", 1),
        (b"[1,-]", "not an integer", 3),
        (b'[1,"2"]', "not an integer", 3),
        (b"[1,null]", "not an integer", 3),
        (b"[[1]]", "not an integer", 1),
        (b"[1,\xef\xbc\x91]", "not an integer", 3),
        (b"[1,\x00]", "not an integer", 3),
        (b"[1,-1]", "not within", 3),
        (b"[1,2147483648]", "not within", 3),
        (b"[9999999999]", "not within", 1),
        (b"[99999999999999999999999]", "not within", 1),
        (b"[1]]", "follows", 3),
        (b"[1] 2", "follows", 4),
        (b"[],", "follows", 2),
    ],
)
def test_wrong_lists(raw, reason, offset):
    with pytest.raises(IdsError, match=reason) as error:
        parse_ids(raw)
    assert error.value.offset == offset
    assert f"byte {offset}" in str(error.value)
    assert isinstance(error.value, ValueError)


def test_errors_cross_processes():
    error = pickle.loads(pickle.dumps(IdsError("not a list", 4)))
    assert (error.reason, error.offset) == ("not a list", 4)


def test_not_a_buffer():
    with pytest.raises(TypeError):
        parse_ids([1, 2])


@settings(deadline=None)
@given(IDS, IDS, IDS)
def test_common_prefix(head, a, b):
    x, y = (np.array(head + tail, dtype=np.int32) for tail in (a, b))
    expected = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
    assert common_prefix(x, y) == expected == common_prefix(y, x)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 64, 200])
def test_common_prefix_around_the_step(n):
    a = np.arange(n, dtype=np.int32)
    assert common_prefix(a, a.copy()) == n
    for at in range(n):
        b = a.copy()
        b[at] ^= 1 << 24
        assert common_prefix(a, b) == at


def test_common_prefix_of_read_only_arrays_and_wrong_types():
    a = np.arange(4, dtype=np.int32)
    a.flags.writeable = False
    assert common_prefix(a, a) == 4
    for wrong in (np.arange(4), np.arange(8, dtype=np.int32)[::2]):
        with pytest.raises(ValueError):
            common_prefix(a, wrong)
