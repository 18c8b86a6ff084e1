/* What a dialect of csrc/chunk is made of: the slots that an event can fill, and tables that say which keys
 * of which objects fill them. Included by chunk.c alone.
 */
#ifndef AX_DIALECT_H
#define AX_DIALECT_H

#include <stdbool.h>
#include <stdint.h>

enum slot {
    NOTHING,  /* written, never read */
    FILLER,   /* a string that differs from event to event and means nothing */
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

static const key NO_KEY = {.len = 0};

#endif
