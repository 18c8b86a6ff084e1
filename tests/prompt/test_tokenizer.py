"""The word pool against tokenizers: a real one where it is at hand, and small made-up ones of every kind."""

import sys
from itertools import product
from pathlib import Path

import pytest

from agentx_engine.errors import UserError
from agentx_engine.prompt.pool import read_words
from agentx_engine.prompt.tokenizer import find_tokenizer, fit_pool, load_tokenizer

GOOD = ["alpha", "beta", "gamma", "delta", "omega"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.fixture(scope="module")
def tk():
    return pytest.importorskip("tokenizers", reason="needs the package tokenizers")


def byte_level(tk, vocabulary, split=True):
    """A vocabulary of whole entries, over byte-level text split into words with their spaces."""
    entries = dict.fromkeys(["[UNK]", "Ċ", *vocabulary])
    model = tk.models.WordLevel({entry: i for i, entry in enumerate(entries)}, unk_token="[UNK]")
    tokenizer = tk.Tokenizer(model)
    if split:
        tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tk.decoders.ByteLevel()
    return tokenizer


def sentence_piece(tk, entries):
    """One piece of text, spaces as ▁, one more in front; the best-scored cut into entries or letters wins."""
    letters = [(c, -10.0) for c in ["▁", "\n", *LETTERS]]
    tokenizer = tk.Tokenizer(tk.models.Unigram([("<unk>", -20.0), *letters, *entries], 0, False))
    tokenizer.normalizer = tk.normalizers.Sequence(
        [tk.normalizers.Prepend("▁"), tk.normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = tk.decoders.Metaspace(prepend_scheme="never")
    return tokenizer


def spaced(words):
    return [f"Ġ{word}" for word in words]


@pytest.fixture
def saved(tmp_path):
    def save(tokenizer):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        return tmp_path

    return save


def fit(path, words, first, **least):
    return fit_pool(path, words, first, **{"min_words": 1, "min_first": 1, **least})


# -- the shipped pool and a real tokenizer


def test_the_shipped_pool_with_a_real_tokenizer(tk, shared):
    found = fit_pool(shared / "tokenizers" / "deepseek")
    report = found.report
    assert (report.words, report.failed, report.replaced) == (2048, 0, 0)
    assert (report.first, report.first_failed, report.first_replaced) == (1402, 0, 0)
    assert report.independent
    assert report.start_tokens == 0
    assert report.vocabulary == 129_280
    assert "all 2,048 words are one token each" in str(report)
    data = Path(sys.modules["agentx_engine"].__file__).parent / "data"
    assert list(found.words) == read_words(data / "words.txt")
    assert list(found.first) == read_words(data / "words-first.txt")


def test_a_pool_rebuilt_from_a_real_tokenizer_counts_exactly(tk, shared):
    folder = shared / "tokenizers" / "deepseek"
    nonsense = ["qx" + "".join(letters) + "q" for letters in product(LETTERS[:14], repeat=3)][:2048]
    found = fit_pool(folder, nonsense, nonsense[:1402])
    assert (found.report.failed, found.report.replaced) == (2048, 2048)
    assert len(found.words) == len(set(found.words)) == 2048
    assert len(found.first) == len(set(found.first)) == 1402
    for word in {*found.words, *found.first}:
        assert 3 <= len(word) <= 7
        assert word.isascii()
        assert word.islower()
    tokenizer, pool = load_tokenizer(folder), found.pool()
    for key, count in ((1, 1), (2, 64), (3, 5000)):
        text = pool.fill(key, count).decode()
        for sent in (text, text[1:], f"[rid:0123]\n\n{text}"):  # as it is, trimmed, behind a marker
            extra = len(tokenizer.encode(sent, add_special_tokens=False).ids) - count
            marker = len(tokenizer.encode("[rid:0123]\n\n", add_special_tokens=False).ids)
            assert extra == (marker if sent.startswith("[") else 0)


def test_the_result_depends_on_nothing_else(tk, shared):
    words = ["qxzqx", *GOOD]
    results = [fit(shared / "tokenizers" / "deepseek", words, words) for _ in range(2)]
    assert results[0] == results[1]


# -- what fails and what takes its place


def test_words_that_the_vocabulary_lacks_are_replaced_in_their_place(tk, saved):
    path = saved(byte_level(tk, [*spaced(["alpha", "gamma", "kappa", "theta"]), "alpha"]))
    found = fit(path, GOOD, ["alpha"])
    assert found.words == ("alpha", "kappa", "gamma", "theta")  # beta, delta, omega; two left to replace them
    assert (found.report.failed, found.report.replaced) == (3, 2)


def test_candidates_are_lower_case_ascii_words_of_3_to_7_letters_in_order_of_ids(tk, saved):
    odd = ["ab", "abcdefgh", "Alpha", "al1ha", "été", "o'clock", "a-b"]
    path = saved(byte_level(tk, spaced([*odd, "zulu", "abcdefg", "abc", "mike"])))
    found = fit(path, ["nope", "neither", "never", "nor"], ["zulu"], min_first=0)
    assert found.words == ("zulu", "abcdefg", "abc", "mike")


def test_first_words_are_one_token_without_the_space_too(tk, saved):
    path = saved(byte_level(tk, [*spaced([*GOOD, "kappa", "theta"]), "alpha", "theta"]))
    found = fit(path, GOOD, ["alpha", "beta"])
    assert found.words == tuple(GOOD)
    assert found.first == ("alpha", "theta")
    assert (found.report.failed, found.report.first_failed, found.report.first_replaced) == (0, 1, 1)


def test_a_first_word_whose_spaced_form_is_missing_fails(tk, saved):
    found = fit(saved(byte_level(tk, [*spaced(["alpha"]), "alpha", "beta"])), ["alpha"], ["alpha", "beta"])
    assert found.first == ("alpha",)


def test_unknown_words_are_not_tokens_of_their_own(tk, saved):
    """They are one token, the same one for all: counted rightly, and every prompt would be alike."""
    path = saved(byte_level(tk, [*spaced(["alpha"]), "alpha"]))
    found = fit(path, GOOD, ["alpha", "beta"])
    assert found.words == ("alpha",)
    assert found.first == ("alpha",)


@pytest.mark.parametrize(
    "least, message",
    [
        ({"min_words": 4}, r"tokenizer\.json: 3 words were found that are one token; 4 are needed"),
        ({"min_first": 2}, r"tokenizer\.json: 1 first words were found that are one token; 2 are needed"),
    ],
)
def test_too_few_words(tk, saved, least, message):
    path = saved(byte_level(tk, [*spaced(["alpha", "beta", "kappa"]), "kappa"]))
    assert len(fit(path, GOOD, GOOD).words) == 3
    with pytest.raises(UserError, match=message):
        fit(path, GOOD, GOOD, **least)


def test_the_default_pool_needs_2048_and_1000_words(tk, saved):
    with pytest.raises(UserError, match="2,048 are needed"):
        fit_pool(saved(byte_level(tk, spaced(GOOD) + GOOD)))
    words = ["qx" + "".join(letters) for letters in product(LETTERS[:13], repeat=3)][:2048]
    with pytest.raises(UserError, match="999 first words were found that are one token; 1,000 are needed"):
        fit_pool(saved(byte_level(tk, spaced(words) + words[:999])))
    found = fit_pool(saved(byte_level(tk, spaced(words) + words[:1000])))
    assert (len(found.words), len(found.first)) == (2048, 1000)
    assert "2,048 of 2,048 words are not one token" in str(found.report)
    assert "1,402 of 1,402 failed, 1,000 in use" in str(found.report)


# -- sequences


def test_text_that_is_split_into_words_makes_them_independent(tk, saved):
    report = fit(saved(byte_level(tk, spaced(GOOD) + GOOD)), GOOD, GOOD).report
    assert report.independent
    assert report.start_tokens == 0


def test_no_split_but_no_token_over_a_space_either(tk, saved):
    entries = [(f"▁{w}", -1.0) for w in GOOD] + [(w, -1.0) for w in GOOD]
    found = fit(saved(sentence_piece(tk, entries)), [*GOOD, "kappa"], ["beta"])
    assert found.words == tuple(GOOD)
    assert found.report.independent
    assert found.report.start_tokens == 1  # the ▁ in front of every text, before that of the word


def test_words_that_melt_into_one_token_are_replaced(tk, saved):
    """As vocabularies with tokens of several words do: alone each is fine, side by side they are one."""
    words = [*GOOD, "kappa", "theta"]
    entries = [(f"▁{w}", -1.0) for w in words] + [(w, -1.0) for w in words] + [("▁beta▁delta", -1.5)]
    path = saved(sentence_piece(tk, entries))
    found = fit(path, GOOD, ["delta", "alpha"])
    assert found.words == ("alpha", "kappa", "gamma", "theta", "omega")
    assert found.first == ("beta", "alpha")  # without delta, beta is its own again
    assert not found.report.independent
    assert "tried, not proved" in str(found.report)
    tokenizer = load_tokenizer(path)
    for a, b in product({*found.words, *found.first}, repeat=2):
        assert len(tokenizer.encode(f" {a} {b}", add_special_tokens=False).ids) == 3


def test_words_that_melt_are_dropped_when_nothing_is_left(tk, saved):
    entries = [(f"▁{w}", -1.0) for w in GOOD] + [("alpha", -1.0), ("▁beta▁delta", -1.5)]
    found = fit(saved(sentence_piece(tk, entries)), GOOD, ["alpha"])
    assert found.words == ("alpha", "gamma", "omega")
    assert (found.report.failed, found.report.replaced) == (2, 0)


def test_a_tokenizer_that_cuts_and_fills_up_is_told_not_to(tk, saved):
    tokenizer = byte_level(tk, spaced(GOOD) + GOOD)
    tokenizer.enable_truncation(1)
    tokenizer.enable_padding(length=16, pad_id=0)
    assert fit(saved(tokenizer), GOOD, GOOD).words == tuple(GOOD)


def test_word_pieces_without_spaces(tk, saved):
    pieces = ["[UNK]", *LETTERS, *(f"##{c}" for c in LETTERS), *GOOD]
    tokenizer = tk.Tokenizer(tk.models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tk.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tk.decoders.WordPiece()
    found = fit(saved(tokenizer), ["kappa", *GOOD[:-1]], GOOD)
    assert found.words == ("omega", *GOOD[:-1])
    assert found.first == tuple(GOOD)
    assert found.report.independent


# -- files


def test_folder_or_file(tk, saved):
    folder = saved(byte_level(tk, spaced(GOOD) + GOOD))
    assert find_tokenizer(folder) == folder / "tokenizer.json"
    assert find_tokenizer(folder / "tokenizer.json") == folder / "tokenizer.json"
    renamed = (folder / "tokenizer.json").rename(folder / "mine.json")
    assert fit(renamed, GOOD, GOOD).report.tokenizer == str(renamed)


def test_not_there(tmp_path):
    with pytest.raises(UserError, match=r"--tokenizer: deepseek-ai/x is not there.*downloads nothing"):
        find_tokenizer(Path("deepseek-ai/x"))
    with pytest.raises(UserError, match=r"has no tokenizer\.json\. It lies beside the model's weights"):
        find_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.model", "tekken.json", "vocab.json"])
def test_other_formats(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=rf"has no tokenizer\.json, and {name} does not .*save_pretrained"):
        find_tokenizer(tmp_path)
    with pytest.raises(UserError, match=rf"{name}: a tokenizer\.json .*is expected"):
        find_tokenizer(tmp_path / name)


def test_broken(tk, tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read: "):
        load_tokenizer(tmp_path)


def test_the_package_is_missing(tmp_path, monkeypatch):
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"pip install 'agentx-engine\[tokenizer\]'"):
        fit_pool(tmp_path)
