"""Word lists: the shipped ones keep their promises, and wrong ones are refused with file and line."""

from importlib import resources

import pytest

from agentx_engine.errors import UserError
from agentx_engine.prompt.pool import default_pool, load_pool, read_words

DATA = resources.files("agentx_engine") / "data"


def test_the_shipped_lists():
    words, first = (read_words(DATA / name) for name in ("words.txt", "words-first.txt"))
    assert (len(words), len(first)) == (2048, 1402)
    assert set(first) < set(words)


def test_the_default_pool_is_made_once():
    assert default_pool() is default_pool()
    assert len(default_pool().fill(1, 1000).split()) == 1000


def test_own_lists(tmp_path):
    (tmp_path / "w").write_text("alpha\nbeta\n")
    (tmp_path / "f").write_text("Gamma")
    assert set(load_pool(tmp_path / "w", tmp_path / "f").fill(3, 50).split()) == {b"Gamma", b"alpha", b"beta"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("one\ntwo\none\n", "line 3: 'one' stands already in line 1"),
        ("one\n\ntwo", "line 2: '' is not a word"),
        ("one two", "line 1"),
        ("eightlet", "line 1: 'eightlet' is not a word of 1 to 7"),
        ("caf\u00e9", "line 1"),
        ('a"b', "line 1"),
        ("a1", "line 1"),
    ],
)
def test_wrong_lists(tmp_path, text, message):
    path = tmp_path / "list.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        read_words(path)
    assert str(path) in str(error.value)


def test_lists_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_words(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        read_words(tmp_path / "binary")
