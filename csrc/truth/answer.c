#include "truth/answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID_DIGITS 12
#define SEQ_ROOM 10
#define SENT_ROOM 19

#define OPENING "data: {\"id\":\"chatcmpl-"
#define KIND                                                                                                 \
    "\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"metronome\",\"choices\":["
#define DELTA "{\"index\":0,\"delta\":{\"content\":\" t"
#define AFTER_TEXT "\"},\"finish_reason\":null}],\"seq\":"
#define SENT ",\"sent_ns\":"
#define CLOSING "}\n\n"

#define LEN(text) (sizeof(text) - 1)

size_t ax_answer_min_event(void)
{
    return LEN(OPENING) + ID_DIGITS + LEN(KIND DELTA AFTER_TEXT) + SEQ_ROOM + LEN(SENT) + SENT_ROOM + LEN(CLOSING);
}

static char *put(char *to, const char *text, size_t len)
{
    memcpy(to, text, len);
    return to + len;
}

int ax_answer_init(ax_answer *a, size_t event_bytes, uint32_t events_per_write)
{
    char frame[16];
    size_t frame_len = (size_t)snprintf(frame, sizeof frame, "%zx\r\n", event_bytes);
    a->chunk_len = frame_len + event_bytes + 2;
    a->events_per_write = events_per_write;
    a->batch = malloc(a->chunk_len * events_per_write);
    if (!a->batch)
        return -1;
    size_t filler = event_bytes - ax_answer_min_event();
    char *p = put(a->batch, frame, frame_len);
    p = put(p, OPENING, LEN(OPENING));
    a->id_at = (size_t)(p - a->batch);
    memset(p, '0', ID_DIGITS);
    p = put(p + ID_DIGITS, KIND DELTA, LEN(KIND DELTA));
    memset(p, 'o', filler);
    p = put(p + filler, AFTER_TEXT, LEN(AFTER_TEXT));
    a->seq_at = (size_t)(p - a->batch);
    memset(p, ' ', SEQ_ROOM);
    p = put(p + SEQ_ROOM, SENT, LEN(SENT));
    a->sent_at = (size_t)(p - a->batch);
    memset(p, ' ', SENT_ROOM);
    put(p + SENT_ROOM, CLOSING "\r\n", LEN(CLOSING "\r\n"));
    for (uint32_t i = 1; i < events_per_write; i++)
        memcpy(a->batch + i * a->chunk_len, a->batch, a->chunk_len);
    return 0;
}

void ax_answer_free(ax_answer *a)
{
    free(a->batch);
    a->batch = NULL;
}

ax_span ax_answer_head(bool keep_alive)
{
#define HEAD                                                                                                 \
    "HTTP/1.1 200 OK\r\nServer: agentx-metronome\r\nContent-Type: text/event-stream; charset=utf-8\r\n"      \
    "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n"
    static const char keep[] = HEAD "\r\n", leave[] = HEAD "Connection: close\r\n\r\n";
    return keep_alive ? (ax_span){keep, LEN(keep)} : (ax_span){leave, LEN(leave)};
}

/* Decimal digits, then blanks up to `room`. */
static void put_number(char *to, size_t room, uint64_t value)
{
    char digits[20];
    size_t n = 0;
    do
        digits[n++] = (char)('0' + value % 10);
    while ((value /= 10) && n < room);
    for (size_t i = 0; i < n; i++)
        to[i] = digits[n - 1 - i];
    memset(to + n, ' ', room - n);
}

ax_span ax_answer_events(ax_answer *a, uint64_t id, uint64_t seq, uint32_t count)
{
    char hex[ID_DIGITS];
    for (int i = 0; i < ID_DIGITS; i++)
        hex[i] = "0123456789abcdef"[(id >> (4 * (ID_DIGITS - 1 - i))) & 15];
    for (uint32_t i = 0; i < count; i++) {
        char *event = a->batch + i * a->chunk_len;
        memcpy(event + a->id_at, hex, ID_DIGITS);
        put_number(event + a->seq_at, SEQ_ROOM, seq + i);
    }
    return (ax_span){a->batch, count * a->chunk_len};
}

void ax_answer_stamp(ax_answer *a, uint32_t count, int64_t sent_ns)
{
    put_number(a->batch + a->sent_at, SENT_ROOM, (uint64_t)sent_ns);
    for (uint32_t i = 1; i < count; i++)
        memcpy(a->batch + i * a->chunk_len + a->sent_at, a->batch + a->sent_at, SENT_ROOM);
}

size_t ax_answer_tail(char *out, uint64_t id, uint64_t tokens, int64_t prompt_tokens, bool limited,
                      int64_t sent_ns)
{
    char event[AX_ANSWER_TAIL_MAX / 2];
    size_t used = 0;
    for (int i = 0; i < 2; i++) {
        int n = snprintf(event, sizeof event, OPENING "%0*" PRIx64 KIND, ID_DIGITS, id);
        if (i == 0)
            n += snprintf(event + n, sizeof event - (size_t)n,
                          "{\"index\":0,\"delta\":{},\"finish_reason\":\"%s\"}]", limited ? "length" : "stop");
        else
            n += snprintf(event + n, sizeof event - (size_t)n,
                          "],\"usage\":{\"prompt_tokens\":%" PRId64 ",\"completion_tokens\":%" PRIu64
                          ",\"total_tokens\":%" PRIu64 "}",
                          prompt_tokens, tokens, (uint64_t)prompt_tokens + tokens);
        n += snprintf(event + n, sizeof event - (size_t)n, ",\"seq\":%" PRIu64 SENT "%" PRId64 CLOSING,
                      tokens + (uint64_t)i, sent_ns);
        used += (size_t)snprintf(out + used, AX_ANSWER_TAIL_MAX - used, "%x\r\n%s\r\n", (unsigned)n, event);
    }
    static const char done[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    memcpy(out + used, done, LEN(done));
    return used + LEN(done);
}
