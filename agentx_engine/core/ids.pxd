from libc.stddef cimport size_t
from libc.stdint cimport int32_t

from agentx_engine.core.rope cimport ax_span


cdef extern from "ids.h" nogil:
    ctypedef enum ax_ids_error:
        AX_IDS_OK
        AX_IDS_NOT_A_LIST
        AX_IDS_NOT_AN_INTEGER
        AX_IDS_OUT_OF_RANGE
        AX_IDS_TRUNCATED
        AX_IDS_TRAILING
        AX_IDS_NO_ROOM

    size_t ax_ids_count(ax_span json)
    ax_ids_error ax_ids_parse(ax_span json, int32_t *out, size_t room, size_t *count, size_t *offset)
    size_t ax_ids_common(const int32_t *a, size_t na, const int32_t *b, size_t nb)
