"""Prompt hashing and the prefix cache, against a plain model of both."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agentx_engine.sim import cache as cache_module
from agentx_engine.sim.cache import PrefixCache, Prompt, tokenize
from agentx_engine.sim.model import TemplateTokens

NO_TEMPLATE = TemplateTokens()
WHITE = st.sampled_from([" ", "  ", "\n\n", "\t", "\r\n", "\x0b", "\x1c", "\x1f", "\u00a0", "\u3000"])
WORDS = st.text(st.sampled_from("abcé你"), min_size=1, max_size=3)
TEXT = st.lists(st.tuples(WORDS, WHITE), max_size=12).map(lambda x: "".join(w + s for w, s in x))
MESSAGES = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), TEXT), max_size=5)


def plain_words(messages: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The token list as the definition has it: words, the first of a message marked by all roles since
    the last word."""
    tokens, pending = [], ""
    for role, text in messages:
        pending += f"<{role}>"
        for word in text.split():
            tokens.append((pending, word))
            pending = ""
    return tokens


def common_blocks(a: list[tuple[str, str]], b: list[tuple[str, str]], size: int) -> int:
    n = 0
    while (n + 1) * size <= min(len(a), len(b)) and a[: (n + 1) * size] == b[: (n + 1) * size]:
        n += 1
    return n


@given(MESSAGES, st.integers(1, 5))
def test_a_prompt_has_its_words_and_its_full_blocks(messages, size):
    prompt = tokenize(messages, size, NO_TEMPLATE)
    assert prompt.tokens == sum(len(text.split()) for _, text in messages)
    assert len(prompt.blocks) == prompt.tokens // size


@settings(max_examples=50)
@given(MESSAGES, MESSAGES, MESSAGES, st.integers(1, 4))
def test_two_prompts_share_exactly_the_blocks_of_their_common_prefix(shared, one, two, size):
    a, b = shared + one, shared + two
    blocks_a, blocks_b = (tokenize(m, size, NO_TEMPLATE).blocks for m in (a, b))
    expected = common_blocks(plain_words(a), plain_words(b), size)
    shared_blocks = sum(x == y for x, y in zip(blocks_a, blocks_b, strict=False))
    assert shared_blocks == expected
    assert len(set(blocks_a) & set(blocks_b)) == expected


def test_white_space_between_words_does_not_matter_but_roles_do():
    one = tokenize([("user", "a b\n\nc d")], 2, NO_TEMPLATE)
    assert tokenize([("user", "  a  b c\td ")], 2, NO_TEMPLATE) == one
    assert tokenize([("assistant", "a b c d")], 2, NO_TEMPLATE).blocks[0] != one.blocks[0]
    assert tokenize([("user", "a b"), ("user", "c d")], 2, NO_TEMPLATE).blocks[1] != one.blocks[1]


@settings(max_examples=40, deadline=None)
@given(TEXT, st.integers(0, 3))
def test_long_and_short_texts_are_split_alike(text, spaces):
    """Long ones go another way."""
    long = (text + " " * spaces + "word ") * 3000
    assert tokenize([("user", long)], 64, NO_TEMPLATE).tokens == len(long.split())
    assert cache_module._single_spaced(long) == " ".join(long.split()).encode()


def test_a_long_text_of_white_space_only_has_no_words():
    assert tokenize([("user", " \n" * 10_000)], 64, NO_TEMPLATE) == Prompt(0, [])


def test_the_template_adds_its_tokens_and_only_them():
    template = TemplateTokens.parse("fixed=3,system=4,user=5,assistant=0")
    messages = [("system", "a b"), ("user", "c"), ("assistant", "d e f"), ("user", "")]
    assert tokenize(messages, 64, template).tokens == 6 + 3 + 4 + 5 + 5
    # The fixed tokens stand at the end: a longer conversation still has the prefix of the shorter one.
    short = tokenize(messages[:2], 2, template)
    longer = tokenize(messages, 2, template)
    assert short.blocks[: (6 + 6) // 2] == longer.blocks[: (6 + 6) // 2]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12),
    st.integers(0, 7),
)
def test_hits_are_those_of_a_list_ordered_by_use(sessions, capacity):
    """Prompts are paths in a tree of blocks; the reference keeps blocks in a list, oldest first."""
    cache = PrefixCache(capacity)
    known: list[tuple[int, ...]] = []
    for path in sessions:
        blocks = [tuple(path[: i + 1]) for i in range(len(path))]
        hits = 0
        while hits < len(blocks) and blocks[hits] in known:
            hits += 1
        prompt = Prompt(len(blocks) * 10 + 1, [hash(b) for b in blocks])
        assert cache.match(prompt, 10) == hits * 10
        for touched in (blocks[:hits], blocks[:capacity]):
            for block in reversed(touched):
                if block in known:
                    known.remove(block)
                known.append(block)
            # Matching touches first; inserting evicts.
        del known[: max(0, len(known) - capacity)]
        cache.insert(prompt)
        assert len(cache) == len(known)


def test_the_last_token_is_always_computed():
    cache = PrefixCache(100)
    words = " ".join(["w"] * 128)
    prompt = tokenize([("user", words)], 64, NO_TEMPLATE)
    assert cache.match(prompt, 64) == 0
    cache.insert(prompt)
    assert len(prompt.blocks) == 2
    assert cache.match(prompt, 64) == 64
    longer = tokenize([("user", words + " w")], 64, NO_TEMPLATE)
    assert cache.match(longer, 64) == 128
    cache.reset()
    assert cache.match(longer, 64) == 0


def test_a_tail_is_forgotten_before_its_head():
    cache = PrefixCache(3)
    a = Prompt(31, [1, 2, 3])
    cache.insert(a)
    cache.insert(Prompt(11, [9]))
    assert cache.match(a, 10) == 20


def test_a_prompt_of_a_million_words():
    words = " ".join(["word"] * 1_000_000)
    prompt = tokenize([("system", words), ("user", "[rid:0123456789ab]\n\n" + words)], 64, NO_TEMPLATE)
    assert prompt.tokens == 2_000_001
    assert len(prompt.blocks) == len(set(prompt.blocks)) == 2_000_001 // 64
