/* The floor: the least that an honest client can spend on a streamed event.
 *
 * It is what the engine's CPU budgets are ratios of, so it does nothing but its work: level-triggered
 * epoll, one recv of at most 64 KB per readiness, one clock read, memmem for `data: `. A closed loop of
 * N connections, each with one request in flight; the next one is sent when the terminating chunk has
 * come. It takes the truth server's answers (HTTP/1.1, chunked), not any server's.
 *
 * With stamps it also reads the `"sent_ns"` of every event and records how far a stamp lies behind it:
 * the user-space stamp (the clock read after the recv), and with AX_STAMPS_KERNEL the kernel's receive
 * stamp (SO_TIMESTAMPNS, which is the newest data's in the read). Costs more, so CPU figures are to be
 * taken without.
 */
#ifndef AX_FLOOR_H
#define AX_FLOOR_H

#include <stddef.h>
#include <stdint.h>

#include "truth/measure.h"

typedef enum ax_stamps {
    AX_STAMPS_NONE = 0,
    AX_STAMPS_USER,
    AX_STAMPS_KERNEL, /* both */
} ax_stamps;

typedef struct ax_floor_options {
    const char *host; /* IPv4 address */
    uint16_t port;
    uint32_t streams;
    uint32_t tokens;     /* asked for per answer */
    uint32_t body_bytes; /* of a request, at least 180 */
    int64_t warmup_ns;   /* not counted, from the first request on; none if `answers` is set */
    int64_t duration_ns; /* counted, behind the warm-up */
    uint64_t answers;    /* asks for no more than these, ends with the last one; 0 = ends by duration */
    ax_stamps stamps;
} ax_floor_options;

typedef struct ax_floor_result {
    uint64_t events;        /* finish, usage and [DONE] included */
    uint64_t warmup_events; /* taken before counting began, in no other figure */
    uint64_t reads;
    uint64_t bytes;
    uint64_t answers;  /* read whole */
    uint64_t requests; /* sent */
    double seconds;
    double cpu_s, cpu_user_s, cpu_system_s; /* of the thread, over `seconds` */
    double connect_s;
    /* Stamps. "single": of reads that held one event only. A number cut by the end of a read is skipped. */
    ax_spread user, kernel, kernel_single;
    uint64_t coalesced_reads; /* with more than one event, the last one of an answer apart */
    uint64_t skipped;         /* events without a whole sent_ns in their read */
} ax_floor_result;

/* Runs until the end stated by the options, or until stop_fd is readable (-1 = none). 0, or -1 with
 * errno and *what (static text): the step that failed, or what was wrong with the server's answer. */
int ax_floor_run(const ax_floor_options *options, int stop_fd, ax_floor_result *result, const char **what);

#endif
