/* Lists of block hash ids, as they stand in a trace file: `[1,2,3]` as JSON bytes.
 *
 * Nothing in the file is trusted: white space is allowed, ids must be integers in 0 .. 2^31-1, and
 * the error carries the byte offset.
 */
#ifndef AX_IDS_H
#define AX_IDS_H

#include <stddef.h>
#include <stdint.h>

#include "span.h"

typedef enum ax_ids_error {
    AX_IDS_OK = 0,
    AX_IDS_NOT_A_LIST,
    AX_IDS_NOT_AN_INTEGER,
    AX_IDS_OUT_OF_RANGE,
    AX_IDS_TRUNCATED,
    AX_IDS_TRAILING,
    AX_IDS_NO_ROOM,
} ax_ids_error;

/* Number of ids in the list if it is well formed (commas + 1), an upper bound otherwise. */
size_t ax_ids_count(ax_span json);

/* Parses the list into out[0..room). Sets *count; on error sets *offset to the byte at fault. */
ax_ids_error ax_ids_parse(ax_span json, int32_t *out, size_t room, size_t *count, size_t *offset);

/* Length of the longest common prefix. */
size_t ax_ids_common(const int32_t *a, size_t na, const int32_t *b, size_t nb);

#endif
