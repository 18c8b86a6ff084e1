/* The tables of AX_DIALECT_CHAT. OpenAI, API reference, "The chat completion chunk object", and what vLLM,
 * SGLang, DeepSeek and OpenRouter add to its delta. Included by chunk.c alone.
 */
#ifndef AX_DIALECT_CHAT_H
#define AX_DIALECT_CHAT_H

#include "dialect.h"

/* SKIP is 0 in both lists: the default of every key. */
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

static const key CHAT_ROOT_KEYS[] = {
    {.len = 0},
    {KEY("choices"), .array = CHAT_CHOICES, .clears = DELTA_ALL | MESSAGE_ALL | BIT(FINISH)},
    {KEY("usage"), .object = CHAT_USAGE, .clears = USAGE_ALL},
    {KEY("error"), .object = CHAT_ERROR, .nonempty = ERROR_OBJECT, .string = ERROR_TEXT, .clears = ERROR_ALL},
    {KEY("sent_ns"), .integer = SENT_NS, .clears = BIT(SENT_NS)},
    {KEY("seq"), .integer = SEQ, .clears = BIT(SEQ)},
    {KEY("obfuscation"), .string = FILLER},
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
        .places = {[PLACE('c', 's', 7)] = 1, [PLACE('u', 'e', 5)] = 2, [PLACE('e', 'r', 5)] = 3, [PLACE('s', 's', 7)] = 4,
                   [PLACE('s', 'q', 3)] = 5,
                   [PLACE('o', 'n', 11)] = 6},
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
        .places = {[PLACE('p', 's', 13)] = 1, [PLACE('c', 's', 17)] = 2,
                   [PLACE('p', 's', 21)] = 3, [PLACE('c', 's', 25)] = 4},
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

#endif
