/* Scanner of one stream event: a pull over the JSON text that builds nothing.
 *
 * Wanted: about the cost of reading the bytes, for an event of 200 bytes with twenty strings in it, of
 * which one matters; the exact meaning that a full JSON parser would find, for any input; no recursion
 * and no allocation, since it runs once per token on the reactor's thread.
 *
 * How: a stack of contexts, one byte per open container. A context says which keys matter in it, and a
 * key says, for each type of value, where it goes: a string or an integer into a numbered slot, an object
 * or an array into another context. Everything else is the context SKIP, in which no key matters but
 * the grammar is still checked. The dialect is these tables alone (dialect_chat.h); the code does not know
 * a key.
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
 * Most events of a stream differ from the one before only in their text, so a memo keeps the last event
 * with its holes: the strings that filled a slot, and the integers. An event with the same bytes around its
 * holes, with a string that is not empty in each string's place and a plain integer in each integer's,
 * takes the scan through the same states: no state depends on anything else of these values. So what the
 * scan saw then is what it would see now, and only the integers are new. Events with an error or a finish
 * reason, whose texts are looked at, are never kept.
 *
 * White space, escapes and numbers follow RFC 8259. Not checked: that strings are UTF-8.
 */
#include "chunk.h"

#include <stdbool.h>
#include <string.h>

#include "dialect_chat.h"
#include "json.h"

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

/* ---- keys and words ---- */

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

static inline const key *key_at(const object *context, unsigned place, const char *s, size_t len,
                                const char *end)
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

static __attribute__((noinline, cold)) const key *find_escaped_key(const object *context, const char *s,
                                                                  size_t len)
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
    uint32_t holes; /* how many there were, also those that `hole` has no room for */
    struct {
        ax_span value;
        uint8_t slot; /* of an integer; NOTHING = a string */
    } hole[AX_CHUNK_HOLES];
} found;

static inline void note_hole(found *f, const char *from, const char *to, uint8_t slot)
{
    if (f->holes < AX_CHUNK_HOLES) {
        f->hole[f->holes].value = (ax_span){from, (size_t)(to - from)};
        f->hole[f->holes].slot = slot;
    }
    f->holes++;
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
        if (k->string && c > s) {
            f->text[k->string] = (ax_span){s, (size_t)(c - s)};
            seen |= BIT(k->string);
            note_hole(f, s, c, NOTHING);
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
        s = c;
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
        if (k->integer && integer) {
            f->number[k->integer] = number;
            seen |= BIT(k->integer);
            note_hole(f, s, c, k->integer);
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
        f->seen = seen & ~(BIT(NOTHING) | BIT(FILLER));
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

/* ---- the memo ---- */

/* [begin, end) ends with '}'. */
static bool recall(const ax_chunk_memo *m, const char *begin, const char *end, found *f)
{
    const char *c = begin;
    size_t at = 0;
    for (uint32_t i = 0; i < m->holes; i++) {
        size_t same = m->hole[i].from - at;
        if ((size_t)(end - c) <= same || memcmp(c, m->text + at, same) != 0)
            return false;
        c += same;
        const char *s = c;
        if (m->hole[i].slot == NOTHING) {
            window w = next_window(begin, c, end);
            if (!w.at)
                return false;
            c = w.at + __builtin_ctzll(w.hits);
            if (*c != '"' && !(c = end_string(begin, c, end)))
                return false;
            if (c == s)
                return false;
        } else {
            int64_t number = 0;
            c = read_digits(c, &number);
            if (c == s || (*s == '0' && c - s > 1))
                return false;
            f->number[m->hole[i].slot] = number;
        }
        at = m->hole[i].to;
    }
    if ((size_t)(end - c) != m->len - at || memcmp(c, m->text + at, m->len - at) != 0)
        return false;
    f->seen = m->seen;
    return true;
}

static void keep(ax_chunk_memo *m, const char *begin, const char *end, const found *f)
{
    size_t len = (size_t)(end - begin);
    if (len > sizeof m->text || f->holes > AX_CHUNK_HOLES || (f->seen & (ERROR_ALL | BIT(FINISH))))
        return;
    memcpy(m->text, begin, len);
    m->len = (uint16_t)len;
    m->seen = f->seen;
    m->holes = (uint8_t)f->holes;
    for (uint32_t i = 0; i < f->holes; i++) {
        m->hole[i].from = (uint16_t)(f->hole[i].value.ptr - begin);
        m->hole[i].to = (uint16_t)(m->hole[i].from + f->hole[i].value.len);
        m->hole[i].slot = f->hole[i].slot;
    }
}

/* A stream whose events never look alike should not pay for keeping each of them. */
#define KEEP_ALWAYS 4
#define KEEP_EVERY 32

static bool scan_or_recall(ax_dialect which, ax_chunk_memo *m, const char *begin, const char *end, found *f)
{
    if (m && m->len && recall(m, begin, end, f)) {
        m->misses = 0;
        m->recalled++;
        return true;
    }
    f->holes = 0;
    if (!scan(&DIALECTS[which], begin, end, f))
        return false;
    if (m && (m->misses++ < KEEP_ALWAYS || m->misses % KEEP_EVERY == 0))
        keep(m, begin, end, f);
    return true;
}

uint32_t ax_chunk_scan_next(ax_dialect which, ax_chunk_memo *memo, ax_span event_name, ax_span data,
                            ax_chunk *out)
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
        flags = scan_or_recall(which, memo, begin, end, &f) ? 0 : AX_CHUNK_MALFORMED;
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

uint32_t ax_chunk_scan(ax_dialect which, ax_span event_name, ax_span data, ax_chunk *out)
{
    return ax_chunk_scan_next(which, NULL, event_name, data, out);
}
