"""Ropes: a sender is offered the segments' bytes, in order, once, for any window and any short write."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentx_engine.core.rope import Rope, RopeBuilder

SEGMENTS = st.lists(st.binary(max_size=12), max_size=12)


@settings(deadline=None)
@given(SEGMENTS, st.integers(1, 5), st.integers(1, 20))
def test_windows_tile_the_bytes(segments, max_iov, max_bytes):
    rope = Rope(segments)
    windows = rope.windows(max_iov, max_bytes)
    assert b"".join(b"".join(w) for w in windows) == b"".join(segments) == bytes(rope)
    for window in windows:
        assert 1 <= len(window) <= max_iov
        assert all(window)
        assert sum(map(len, window)) <= max_bytes


@settings(deadline=None)
@given(SEGMENTS, st.integers(1, 5), st.integers(1, 20), st.integers(1, 20))
def test_short_writes_resume_at_the_byte(segments, max_iov, max_bytes, step):
    whole = b"".join(segments)
    at = 0
    for window in Rope(segments).windows(max_iov, max_bytes, step):
        offered = b"".join(window)
        assert whole.startswith(offered, at)
        at += min(step, len(offered))
    assert at == len(whole)


def test_empty_segments_are_dropped():
    rope = Rope([b"", b"a", b"", b"bc", b""])
    assert rope.segments == (b"a", b"bc")
    assert len(rope) == 3
    assert Rope([b""]).windows() == [] == Rope().windows()


def test_segments_are_shared_and_kept_alive():
    segment = bytes(1000)
    before = sys.getrefcount(segment)
    rope = Rope([segment, segment])
    assert sys.getrefcount(segment) == before + 2
    del rope
    assert sys.getrefcount(segment) == before


@pytest.mark.parametrize("segment", ["text", None, bytearray(b"x"), 3])
def test_only_bytes(segment):
    with pytest.raises(TypeError):
        Rope([b"a", segment])
    with pytest.raises(TypeError):
        RopeBuilder().append(segment)


def test_a_rope_cannot_be_changed():
    rope = Rope([b"a"])
    for name in ("segments", "rope", "kept", "other"):
        with pytest.raises(AttributeError):
            setattr(rope, name, ())


@pytest.mark.parametrize(("max_iov", "max_bytes"), [(0, 1), (1025, 1), (1, 0)])
def test_window_bounds(max_iov, max_bytes):
    with pytest.raises(ValueError, match="max_iov"):
        Rope([b"a"]).windows(max_iov, max_bytes)


OPERATIONS = st.lists(st.one_of(st.binary(max_size=6), st.integers(0, 40)), max_size=60)


@settings(deadline=None)
@given(OPERATIONS)
def test_builder_against_a_list(operations):
    builder, model, frozen = RopeBuilder(), [], []
    for op in operations:
        if isinstance(op, int):
            builder.truncate(op)
            del model[op:]
        else:
            builder.append(op)
            model += [op] if op else []
        assert len(builder) == len(model)
        assert builder.nbytes == sum(map(len, model))
        frozen.append((builder.snapshot(b"<", b">"), b"<" + b"".join(model) + b">"))
    for rope, expected in frozen:
        assert bytes(rope) == expected
        assert len(rope) == len(expected)
        assert b"".join(b"".join(w) for w in rope.windows(3, 7)) == expected


def test_snapshots_outlive_what_the_builder_drops():
    builder = RopeBuilder()
    builder.append(b"%d" % 10**30)
    rope = builder.snapshot()
    builder.truncate(0)
    del builder
    assert bytes(rope) == b"%d" % 10**30


def test_snapshot_without_prefix_and_suffix():
    builder = RopeBuilder()
    assert builder.snapshot().segments == ()
    builder.append(b"a")
    assert builder.snapshot(b"", b"z").segments == (b"a", b"z")
