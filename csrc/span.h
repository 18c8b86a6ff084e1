/* A borrowed run of bytes: pointer and length, no terminator, no ownership. */
#ifndef AX_SPAN_H
#define AX_SPAN_H

#include <stddef.h>

typedef struct ax_span {
    const char *ptr;
    size_t len;
} ax_span;

#endif
