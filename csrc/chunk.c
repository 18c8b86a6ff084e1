/* Scanner of one stream event: a pull over the JSON text that builds nothing.
 *
 * Wanted: about the cost of reading the bytes, for an event of 200 bytes with twenty strings in it, of
 * which one matters; the exact meaning that a full JSON parser would find, for any input; no recursion
 * and no allocation, since it runs once per token on the reactor's thread.
 *
 * How: a stack of contexts, one byte per open container. A context says which keys matter in it, and a
 * key says, for each type of value, where it goes: a string or an integer into a numbered slot, an object
 * or an array into another context. Everything else is the context SKIP, in which no key matters but
 * the grammar is still checked. The dialect is these tables alone; the code does not know a key.
 *
 * What was found is a set of slots (one bit each in `seen`) with their spans and integers. A key that
 * matters clears its slots, and those of everything below it, before its value is read, so a later
 * duplicate wins, as it does in every common JSON library. Elements of a list that count together
 * (tool calls) use slots of their own, which are folded into one when the element closes.
 *
 * One trick: the text is trimmed and must end in '}' before the scan starts. Nothing but '}' itself can
 * step past that byte (it is no white space, no digit, and a string that reaches it is unterminated),
 * so only the closing of an object has to check for the end.
 *
 * White space, escapes and numbers follow RFC 8259. Not checked: that strings are UTF-8.
 */
#include "chunk.h"

#include <stdbool.h>
#include <string.h>

#include "scan.h"

/* ---- what can be found ---- */

enum slot {
    NOTHING, /* written, never read */
    DELTA_CONTENT,
    DELTA_REFUSAL,
    DELTA_REASONING_CONTENT,
    DELTA_REASONING,
    DELTA_REASONING_DETAILS,
    DELTA_TOOL,
    MESSAGE_CONTENT,
    MESSAGE_REFUSAL,
    MESSAGE_REASONING_CONTENT,
    MESSAGE_REASONING,
    MESSAGE_REASONING_DETAILS,
    MESSAGE_TOOL,
    FINISH,
    PROMPT,
    COMPLETION,
    CACHED,
    REASONING_TOKENS,
    ERROR_OBJECT,
    ERROR_TEXT,
    ERROR_MESSAGE,
    ERROR_TYPE,
    ERROR_CODE_TEXT,
    ERROR_CODE,
    SENT_NS,
    SEQ,
    ELEMENT_NAME,      /* of the tool call that is open */
    ELEMENT_ARGUMENTS, /* of the tool call that is open */
    ELEMENT_TEXT,      /* of the reasoning detail that is open */
    SLOTS,
};

#define BIT(slot) (UINT64_C(1) << (slot))
/* Slots first..last. */
#define RANGE(first, last) ((BIT((last) - (first) + 1) - 1) << (first))

#define DELTA_ALL RANGE(DELTA_CONTENT, DELTA_TOOL)
#define MESSAGE_ALL RANGE(MESSAGE_CONTENT, MESSAGE_TOOL)
#define TEXT_SLOTS (BIT(DELTA_CONTENT) | BIT(DELTA_REFUSAL) | BIT(MESSAGE_CONTENT) | BIT(MESSAGE_REFUSAL))
#define USAGE_ALL RANGE(PROMPT, REASONING_TOKENS)
#define ERROR_ALL RANGE(ERROR_OBJECT, ERROR_CODE)

static const struct {
    uint64_t slots;
    uint32_t flag;
} MEANING[] = {
    {TEXT_SLOTS, AX_CHUNK_TEXT},
    {RANGE(DELTA_REASONING_CONTENT, DELTA_REASONING_DETAILS) |
         RANGE(MESSAGE_REASONING_CONTENT, MESSAGE_REASONING_DETAILS),
     AX_CHUNK_REASONING},
    {BIT(DELTA_TOOL) | BIT(MESSAGE_TOOL), AX_CHUNK_TOOL},
    {BIT(FINISH), AX_CHUNK_FINISH},
    {USAGE_ALL, AX_CHUNK_USAGE},
    {BIT(ERROR_OBJECT) | BIT(ERROR_TEXT), AX_CHUNK_ERROR},
};

/* ---- tables ---- */

typedef struct key {
    char name[32]; /* zero-padded, read as words */
    uint8_t len;
    uint8_t object;   /* context of an object */
    uint8_t array;    /* context of an array */
    uint8_t nonempty; /* slot of an object with a member */
    uint8_t string;   /* slot of a string that is not empty */
    uint8_t integer;  /* slot of an integer that is not negative */
    uint64_t clears;  /* slots that a new value of this key replaces */
} key;

/* Where a key is in its object's table. Two keys of one object with the same place would be an
 * initialiser that overrides another, which the compiler reports. */
#define PLACE(first, last, len) (((unsigned)(first) + (unsigned)(last) + 4 * (unsigned)(len)) & 63)

typedef struct object {
    uint8_t places[64]; /* index into keys, 0 = no key has this place */
    const key *keys;    /* number 0 matches nothing */
    uint64_t from;      /* when the object closes, any of these slots ... */
    uint8_t to;         /* ... becomes this one */
} object;

typedef struct array {
    key element;
    bool first_only;
} array;

typedef struct dialect {
    const object *objects;
    const array *arrays;
} dialect;

#define KEY(text) .name = text, .len = sizeof text - 1

/* OpenAI, API reference, "The chat completion chunk object", and what vLLM, SGLang, DeepSeek and
 * OpenRouter add to its delta. SKIP is 0 in both lists: the default of every key. */
enum chat_object {
    CHAT_SKIP,
    CHAT_ROOT,
    CHAT_CHOICE,
    CHAT_DELTA,
    CHAT_MESSAGE,
    CHAT_DELTA_TOOL,
    CHAT_MESSAGE_TOOL,
    CHAT_FUNCTION,
    CHAT_DELTA_DETAIL,
    CHAT_MESSAGE_DETAIL,
    CHAT_USAGE,
    CHAT_PROMPT_DETAILS,
    CHAT_COMPLETION_DETAILS,
    CHAT_ERROR,
};

enum chat_array {
    CHAT_SKIP_LIST,
    CHAT_CHOICES,
    CHAT_DELTA_TOOLS,
    CHAT_MESSAGE_TOOLS,
    CHAT_DELTA_DETAILS,
    CHAT_MESSAGE_DETAILS,
};

static const key NO_KEY = {.len = 0};

static const key CHAT_ROOT_KEYS[] = {
    {.len = 0},
    {KEY("choices"), .array = CHAT_CHOICES, .clears = DELTA_ALL | MESSAGE_ALL | BIT(FINISH)},
    {KEY("usage"), .object = CHAT_USAGE, .clears = USAGE_ALL},
    {KEY("error"), .object = CHAT_ERROR, .nonempty = ERROR_OBJECT, .string = ERROR_TEXT, .clears = ERROR_ALL},
    {KEY("sent_ns"), .integer = SENT_NS, .clears = BIT(SENT_NS)},
    {KEY("seq"), .integer = SEQ, .clears = BIT(SEQ)},
};

static const key CHAT_CHOICE_KEYS[] = {
    {.len = 0},
    {KEY("delta"), .object = CHAT_DELTA, .clears = DELTA_ALL},
    {KEY("finish_reason"), .string = FINISH, .clears = BIT(FINISH)},
    {KEY("message"), .object = CHAT_MESSAGE, .clears = MESSAGE_ALL},
};

#define CONTENT_KEYS(X)                                                                             \
    {KEY("content"), .string = X##_CONTENT, .clears = BIT(X##_CONTENT)},                            \
    {KEY("reasoning_content"), .string = X##_REASONING_CONTENT, .clears = BIT(X##_REASONING_CONTENT)}, \
    {KEY("reasoning"), .string = X##_REASONING, .clears = BIT(X##_REASONING)},                      \
    {KEY("reasoning_details"), .array = CHAT_##X##_DETAILS, .clears = BIT(X##_REASONING_DETAILS)},  \
    {KEY("tool_calls"), .array = CHAT_##X##_TOOLS, .clears = BIT(X##_TOOL)},                        \
    {KEY("refusal"), .string = X##_REFUSAL, .clears = BIT(X##_REFUSAL)},

static const key CHAT_DELTA_KEYS[] = {{.len = 0}, CONTENT_KEYS(DELTA)};
static const key CHAT_MESSAGE_KEYS[] = {{.len = 0}, CONTENT_KEYS(MESSAGE)};

static const key CHAT_TOOL_KEYS[] = {
    {.len = 0},
    {KEY("function"), .object = CHAT_FUNCTION, .clears = BIT(ELEMENT_NAME) | BIT(ELEMENT_ARGUMENTS)},
};

static const key CHAT_FUNCTION_KEYS[] = {
    {.len = 0},
    {KEY("name"), .string = ELEMENT_NAME, .clears = BIT(ELEMENT_NAME)},
    {KEY("arguments"), .string = ELEMENT_ARGUMENTS, .clears = BIT(ELEMENT_ARGUMENTS)},
};

static const key CHAT_DETAIL_KEYS[] = {
    {.len = 0},
    {KEY("text"), .string = ELEMENT_TEXT, .clears = BIT(ELEMENT_TEXT)},
};

static const key CHAT_USAGE_KEYS[] = {
    {.len = 0},
    {KEY("prompt_tokens"), .integer = PROMPT, .clears = BIT(PROMPT)},
    {KEY("completion_tokens"), .integer = COMPLETION, .clears = BIT(COMPLETION)},
    {KEY("prompt_tokens_details"), .object = CHAT_PROMPT_DETAILS, .clears = BIT(CACHED)},
    {KEY("completion_tokens_details"), .object = CHAT_COMPLETION_DETAILS, .clears = BIT(REASONING_TOKENS)},
};

static const key CHAT_PROMPT_DETAILS_KEYS[] = {
    {.len = 0},
    {KEY("cached_tokens"), .integer = CACHED, .clears = BIT(CACHED)},
};

static const key CHAT_COMPLETION_DETAILS_KEYS[] = {
    {.len = 0},
    {KEY("reasoning_tokens"), .integer = REASONING_TOKENS, .clears = BIT(REASONING_TOKENS)},
};

static const key CHAT_ERROR_KEYS[] = {
    {.len = 0},
    {KEY("message"), .string = ERROR_MESSAGE, .clears = BIT(ERROR_MESSAGE)},
    {KEY("type"), .string = ERROR_TYPE, .clears = BIT(ERROR_TYPE)},
    {KEY("code"),
     .string = ERROR_CODE_TEXT,
     .integer = ERROR_CODE,
     .clears = BIT(ERROR_CODE_TEXT) | BIT(ERROR_CODE)},
};

#define ELEMENT_TOOL (BIT(ELEMENT_NAME) | BIT(ELEMENT_ARGUMENTS))
#define CONTENT_PLACES \
    [PLACE('c', 't', 7)] = 1, [PLACE('r', 't', 17)] = 2, [PLACE('r', 'g', 9)] = 3, \
    [PLACE('r', 's', 17)] = 4, [PLACE('t', 's', 10)] = 5, [PLACE('r', 'l', 7)] = 6

static const object CHAT_OBJECTS[] = {
    [CHAT_SKIP] = {.keys = &NO_KEY},
    [CHAT_ROOT] = {.keys = CHAT_ROOT_KEYS,
        .places = {[PLACE('c', 's', 7)] = 1, [PLACE('u', 'e', 5)] = 2, [PLACE('e', 'r', 5)] = 3, [PLACE('s', 's', 7)] = 4, [PLACE('s', 'q', 3)] = 5},
    },
    [CHAT_CHOICE] = {.keys = CHAT_CHOICE_KEYS,
        .places = {[PLACE('d', 'a', 5)] = 1, [PLACE('f', 'n', 13)] = 2, [PLACE('m', 'e', 7)] = 3},
    },
    [CHAT_DELTA] = {.keys = CHAT_DELTA_KEYS,
        .places = {CONTENT_PLACES},
    },
    [CHAT_MESSAGE] = {.keys = CHAT_MESSAGE_KEYS,
        .places = {CONTENT_PLACES},
    },
    [CHAT_DELTA_TOOL] = {.keys = CHAT_TOOL_KEYS,
        .places = {[PLACE('f', 'n', 8)] = 1},
        .from = ELEMENT_TOOL, .to = DELTA_TOOL,
    },
    [CHAT_MESSAGE_TOOL] = {.keys = CHAT_TOOL_KEYS,
        .places = {[PLACE('f', 'n', 8)] = 1},
        .from = ELEMENT_TOOL, .to = MESSAGE_TOOL,
    },
    [CHAT_FUNCTION] = {.keys = CHAT_FUNCTION_KEYS,
        .places = {[PLACE('n', 'e', 4)] = 1, [PLACE('a', 's', 9)] = 2},
    },
    [CHAT_DELTA_DETAIL] = {.keys = CHAT_DETAIL_KEYS,
        .places = {[PLACE('t', 't', 4)] = 1},
        .from = BIT(ELEMENT_TEXT), .to = DELTA_REASONING_DETAILS,
    },
    [CHAT_MESSAGE_DETAIL] = {.keys = CHAT_DETAIL_KEYS,
        .places = {[PLACE('t', 't', 4)] = 1},
        .from = BIT(ELEMENT_TEXT), .to = MESSAGE_REASONING_DETAILS,
    },
    [CHAT_USAGE] = {.keys = CHAT_USAGE_KEYS,
        .places = {[PLACE('p', 's', 13)] = 1, [PLACE('c', 's', 17)] = 2, [PLACE('p', 's', 21)] = 3, [PLACE('c', 's', 25)] = 4},
    },
    [CHAT_PROMPT_DETAILS] = {.keys = CHAT_PROMPT_DETAILS_KEYS,
        .places = {[PLACE('c', 's', 13)] = 1},
    },
    [CHAT_COMPLETION_DETAILS] = {.keys = CHAT_COMPLETION_DETAILS_KEYS,
        .places = {[PLACE('r', 's', 16)] = 1},
    },
    [CHAT_ERROR] = {.keys = CHAT_ERROR_KEYS,
        .places = {[PLACE('m', 'e', 7)] = 1, [PLACE('t', 'e', 4)] = 2, [PLACE('c', 'e', 4)] = 3},
    },
};

static const array CHAT_ARRAYS[] = {
    [CHAT_SKIP_LIST] = {.first_only = false},
    [CHAT_CHOICES] = {.element = {.object = CHAT_CHOICE}, .first_only = true},
    [CHAT_DELTA_TOOLS] = {.element = {.object = CHAT_DELTA_TOOL}},
    [CHAT_MESSAGE_TOOLS] = {.element = {.object = CHAT_MESSAGE_TOOL}},
    [CHAT_DELTA_DETAILS] = {.element = {.object = CHAT_DELTA_DETAIL}},
    [CHAT_MESSAGE_DETAILS] = {.element = {.object = CHAT_MESSAGE_DETAIL}},
};

/* The context of the whole text is number 1 of every dialect. */
static const dialect DIALECTS[] = {
    [AX_DIALECT_CHAT] = {CHAT_OBJECTS, CHAT_ARRAYS},
};

static const struct {
    const char *word;
    uint8_t len;
    ax_finish finish;
} FINISHES[] = {
    {"stop", 4, AX_FINISH_STOP},
    {"length", 6, AX_FINISH_LENGTH},
    {"tool_calls", 10, AX_FINISH_TOOL_CALLS},
    {"content_filter", 14, AX_FINISH_CONTENT_FILTER},
};

/* ---- JSON ---- */

static inline bool space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* `c` is inside the text, whose last byte is no white space. */
static inline const char *skip_space(const char *c)
{
    if (__builtin_expect((unsigned char)*c > ' ', 1))
        return c;
    while (space(*c))
        c++;
    return c;
}

static inline bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits end inside the text, since its last byte is none. */
static inline const char *skip_digits(const char *c)
{
    while (digit(*c))
        c++;
    return c;
}

static inline const char *read_digits(const char *c, int64_t *number)
{
    for (; digit(*c); c++)
        if (__builtin_mul_overflow(*number, (int64_t)10, number) ||
            __builtin_add_overflow(*number, (int64_t)(*c - '0'), number))
            *number = INT64_MAX;
    return c;
}

static int hex(char c)
{
    if (digit(c))
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* `c` is at a backslash: behind the escape, or NULL. */
static __attribute__((noinline, cold)) const char *skip_escape(const char *c, const char *end)
{
    if (end - c < 2)
        return NULL;
    if (c[1] == 'u') {
        if (end - c < 6)
            return NULL;
        for (int i = 2; i < 6; i++)
            if (hex(c[i]) < 0)
                return NULL;
        return c + 6;
    }
    return c[1] && strchr("\"\\/bfnrt", c[1]) ? c + 2 : NULL;
}

/* Undoes the escapes of a checked string, as far as needed to compare it with an ASCII word: characters
 * outside ASCII become 0xff. Returns the length, at most `room`. */
static size_t unescape(const char *s, size_t len, char *out, size_t room)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    const char *end = s + len;
    size_t n = 0;
    while (s < end && n < room) {
        char c = *s++;
        if (c == '\\') {
            c = *s++;
            const char *at = strchr(from, c);
            if (at) {
                c = to[at - from];
            } else if (c == 'u') {
                int code = hex(s[0]) << 12 | hex(s[1]) << 8 | hex(s[2]) << 4 | hex(s[3]);
                c = code < 0x80 ? (char)code : '\xff';
                s += 4;
            }
        }
        out[n++] = c;
    }
    return n;
}

/* The first 8 bytes of a key, zeros behind its end. */
static inline uint64_t first_word(const char *s, size_t len, const char *end)
{
    uint64_t word = 0;
    if (__builtin_expect(end - s >= 8, 1))
        word = ax_load8(s);
    else
        memcpy(&word, s, (size_t)(end - s));
    return len < 8 ? word & ((UINT64_C(1) << len * 8) - 1) : word;
}

/* The key that may be this one, by its place; number 0 for most that do not matter. An empty key has the
 * place of the quotes around it, and then the wrong length. */
static inline unsigned place_of(const object *context, const char *s, size_t len)
{
    return context->places[PLACE((unsigned char)s[0], (unsigned char)s[len - 1], len)];
}

static inline const key *key_at(const object *context, unsigned place, const char *s, size_t len, const char *end)
{
    const key *k = &context->keys[place];
    if (k->len != len || ax_load8(k->name) != first_word(s, len, end))
        return &NO_KEY;
    if (len <= 8)
        return k;
    if (len > 16)
        return memcmp(k->name + 8, s + 8, len - 8) == 0 ? k : &NO_KEY;
    return ax_load8(k->name + len - 8) == ax_load8(s + len - 8) ? k : &NO_KEY;
}

static __attribute__((noinline, cold)) const key *find_escaped_key(const object *context, const char *s, size_t len)
{
    char text[sizeof NO_KEY.name + 1];
    size_t n = unescape(s, len, text, sizeof text);
    if (n == 0 || n == sizeof text)
        return &NO_KEY;
    unsigned place = place_of(context, text, n);
    return place ? key_at(context, place, text, n, text + n) : &NO_KEY;
}

static ax_finish finish_of(ax_span text)
{
    char word[16];
    size_t n = unescape(text.ptr, text.len, word, sizeof word);
    for (size_t i = 0; i < sizeof FINISHES / sizeof *FINISHES; i++)
        if (FINISHES[i].len == n && memcmp(FINISHES[i].word, word, n) == 0)
            return FINISHES[i].finish;
    return AX_FINISH_OTHER;
}

/* ---- the scan ---- */

typedef struct found {
    uint64_t seen;
    ax_span text[SLOTS];
    int64_t number[SLOTS];
} found;

/* 64 bytes of the text, and where ax_string_mask hits in them. */
typedef struct window {
    const char *at;
    uint64_t hits;
} window;

/* The first window at or behind `c` that has a hit; its `at` is NULL if there is none. */
static __attribute__((noinline)) window next_window(const char *begin, const char *c, const char *end)
{
    for (; c < end; c += 64) {
        uint64_t hits = ax_string_mask(begin, c, end);
        if (hits)
            return (window){c, hits};
        if (end - c <= 64)
            break;
    }
    return (window){NULL, 0};
}

/* Moves `c` to the first hit at or behind it; returns false from the caller if there is none. A macro,
 * so that the window stays in registers. */
#define NEXT_HIT(c)                                                                  \
    do {                                                                             \
        size_t at_ = (size_t)((c) - w.at);                                           \
        uint64_t left_ = w.hits >> (at_ & 63);                                       \
        if (__builtin_expect(at_ < 64 && left_ != 0, 1)) {                           \
            (c) += __builtin_ctzll(left_);                                           \
        } else {                                                                     \
            w = next_window(begin, at_ < 64 ? w.at + 64 : (c), end);                 \
            if (!w.at)                                                               \
                return false;                                                        \
            (c) = w.at + __builtin_ctzll(w.hits);                                    \
        }                                                                            \
    } while (0)

/* `c` is at a hit inside a string: the closing quote, or NULL if the string is not JSON. */
static __attribute__((noinline)) const char *end_string(const char *begin, const char *c, const char *end)
{
    window w = {c, ax_string_mask(begin, c, end)};
    while (*c != '"') {
        if (*c != '\\' || !(c = skip_escape(c, end)) || c == end)
            return NULL;
        NEXT_HIT(c);
    }
    return c;
}

#define LIST 0x80 /* a context of an array, in the stack */

/* False if the text is not one JSON object. [begin, end) starts with '{' and ends with '}'. */
static __attribute__((noinline)) bool scan(const dialect *d, const char *begin, const char *end, found *f)
{
    uint8_t stack[AX_CHUNK_MAX_DEPTH], *top = stack;
    uint64_t seen = 0;
    const object *context = &d->objects[1];
    const key *k = &NO_KEY;
    const char *c = begin, *s;
    window w = {begin, ax_string_mask(begin, begin, end)};

    *top = 1;
    c = skip_space(c + 1);
    if (*c == '}')
        goto close_object;

member:
    if (*c != '"')
        return false;
    s = ++c;
    NEXT_HIT(c);
    if (__builtin_expect(*c == '"', 1)) {
        unsigned place = place_of(context, s, (size_t)(c - s));
        k = place ? key_at(context, place, s, (size_t)(c - s), end) : &NO_KEY;
    } else {
        if (!(c = end_string(begin, c, end)))
            return false;
        k = find_escaped_key(context, s, (size_t)(c - s));
    }
    seen &= ~k->clears;
    if (*++c != ':') {
        c = skip_space(c);
        if (*c != ':')
            return false;
    }
    c = skip_space(c + 1);

value:
    if (*c == '"') {
        s = ++c;
        NEXT_HIT(c);
        if (__builtin_expect(*c != '"', 0) && !(c = end_string(begin, c, end)))
            return false;
        if (k->string) {
            f->text[k->string] = (ax_span){s, (size_t)(c - s)};
            seen |= (uint64_t)(c > s) << k->string;
        }
        c++;
        goto after;
    }
    switch (*c) {
    case '{':
        if (top == stack + AX_CHUNK_MAX_DEPTH - 1)
            return false;
        *++top = k->object;
        context = &d->objects[k->object];
        c = skip_space(c + 1);
        if (*c == '}')
            goto close_object;
        seen |= BIT(k->nonempty);
        goto member;

    case '[':
        if (top == stack + AX_CHUNK_MAX_DEPTH - 1)
            return false;
        *++top = k->array | LIST;
        c = skip_space(c + 1);
        if (*c == ']')
            goto close_array;
        k = &d->arrays[k->array].element;
        goto value;

    case '-':
    case '0' ... '9': {
        bool integer = *c != '-';
        int64_t number = 0;
        c += !integer;
        if (*c == '0') {
            c++;
        } else if (*c >= '1' && *c <= '9') {
            if (k->integer)
                c = read_digits(c, &number);
            else
                c = skip_digits(c);
        } else {
            return false;
        }
        if (*c == '.') {
            integer = false;
            if (!digit(*++c))
                return false;
            c = skip_digits(c);
        }
        if (*c == 'e' || *c == 'E') {
            integer = false;
            c++;
            c += *c == '+' || *c == '-';
            if (!digit(*c))
                return false;
            c = skip_digits(c);
        }
        if (k->integer) {
            f->number[k->integer] = number;
            seen |= (uint64_t)integer << k->integer;
        }
        break;
    }

    case 'n':
        if (end - c < 4 || memcmp(c, "null", 4) != 0)
            return false;
        c += 4;
        break;

    case 't':
        if (end - c < 4 || memcmp(c, "true", 4) != 0)
            return false;
        c += 4;
        break;

    case 'f':
        if (end - c < 5 || memcmp(c, "false", 5) != 0)
            return false;
        c += 5;
        break;

    default:
        return false;
    }

after:
    if (*c == ',' && !(*top & LIST)) {
        c = skip_space(c + 1);
        goto member;
    }
    c = skip_space(c);
    if (*top & LIST) {
        if (*c == ',') {
            const array *list = &d->arrays[*top & ~LIST];
            k = &list->element;
            if (list->first_only) {
                *top = LIST;
                k = &NO_KEY;
            }
            c = skip_space(c + 1);
            goto value;
        }
        if (*c != ']')
            return false;
    close_array:
        c++;
        /* The root is an object, so there is something below. */
        top--;
        if (!(*top & LIST))
            context = &d->objects[*top];
        goto after;
    }
    if (*c == ',') {
        c = skip_space(c + 1);
        goto member;
    }
    if (*c != '}')
        return false;
close_object:
    c++;
    if (seen & context->from)
        seen = (seen & ~context->from) | BIT(context->to);
    if (top == stack) {
        if (c != end)
            return false;
        f->seen = seen & ~BIT(NOTHING);
        return true;
    }
    top--;
    if (c == end)
        return false;
    if (!(*top & LIST))
        context = &d->objects[*top];
    goto after;
}

static int64_t number_of(const found *f, int slot)
{
    return f->seen & BIT(slot) ? f->number[slot] : -1;
}

static ax_span text_of(const found *f, int slot)
{
    return f->seen & BIT(slot) ? f->text[slot] : (ax_span){"", 0};
}

static __attribute__((noinline)) void report(const found *f, ax_chunk *out, uint32_t *flags)
{
    for (size_t i = 0; i < sizeof MEANING / sizeof *MEANING; i++)
        *flags |= f->seen & MEANING[i].slots ? MEANING[i].flag : 0;
    if (f->seen & BIT(FINISH))
        out->finish = finish_of(f->text[FINISH]);
    out->usage.prompt = number_of(f, PROMPT);
    out->usage.completion = number_of(f, COMPLETION);
    out->usage.cached = number_of(f, CACHED);
    out->usage.reasoning = number_of(f, REASONING_TOKENS);
    out->sent_ns = number_of(f, SENT_NS);
    out->seq = number_of(f, SEQ);
    out->error_code = number_of(f, ERROR_CODE);
    out->error_type = text_of(f, f->seen & BIT(ERROR_TYPE) ? ERROR_TYPE : ERROR_CODE_TEXT);
    out->error_message = text_of(f, f->seen & BIT(ERROR_MESSAGE) ? ERROR_MESSAGE : ERROR_TEXT);
}

static const ax_chunk ABSENT = {
    .usage = {-1, -1, -1, -1},
    .error_message = {"", 0},
    .error_type = {"", 0},
    .error_code = -1,
    .sent_ns = -1,
    .seq = -1,
};

uint32_t ax_chunk_scan(ax_dialect which, ax_span event_name, ax_span data, ax_chunk *out)
{
    const char *begin = data.ptr, *end = data.ptr + data.len;
    found f;
    uint32_t flags = 0;

    f.seen = 0;
    while (begin < end && space(*begin))
        begin++;
    while (end > begin && space(end[-1]))
        end--;

    if (begin == end)
        flags = 0;
    else if (*begin == '{' && end[-1] == '}')
        flags = scan(&DIALECTS[which], begin, end, &f) ? 0 : AX_CHUNK_MALFORMED;
    else if (end - begin == 6 && memcmp(begin, "[DONE]", 6) == 0)
        flags = AX_CHUNK_DONE;
    else
        flags = AX_CHUNK_MALFORMED;
    if (event_name.len == 5 && memcmp(event_name.ptr, "error", 5) == 0)
        flags |= AX_CHUNK_ERROR;

    *out = ABSENT;
    if (f.seen & ~TEXT_SLOTS)
        report(&f, out, &flags);
    else if (f.seen)
        flags |= AX_CHUNK_TEXT;
    if ((flags & AX_CHUNK_ERROR) && out->error_message.len == 0)
        out->error_message = data;
    return out->flags = flags;
}
