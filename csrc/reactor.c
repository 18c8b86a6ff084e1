#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "reactor_parts.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

#define MAX_EVENTS 512
#define EVENTS_PER_LOOK 16
#define SWEEP_EVERY (AX_NS_PER_S / 4)
/* While answers are awaited, at most so long between two listings: see note_listing. To sleep so shortly costs
 * a reprogramming of the clock interrupt each time, so it is not done while events come in quick succession;
 * then the bound only serves to see when the thread overslept. */
#define LISTING_EVERY (AX_NS_PER_S / 2500)
#define BUSY_LISTING_EVERY (AX_NS_PER_S / 250)

static void wake(int fd)
{
    uint64_t one = 1;
    /* The counter cannot overflow, and a full one means that the reader is awake anyway. */
    ssize_t n = write(fd, &one, sizeof one);
    (void)n;
}

static void drain_fd(int fd)
{
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    (void)n;
}

/* Takes the whole stack, oldest first. */
static ax_exchange *take_all(_Atomic(ax_exchange *) *stack)
{
    ax_exchange *x = atomic_exchange_explicit(stack, NULL, memory_order_acquire), *oldest_first = NULL;
    while (x) {
        ax_exchange *next = x->next;
        x->next = oldest_first;
        oldest_first = x;
        x = next;
    }
    return oldest_first;
}

/* -- Submissions and commands ------------------------------------------------------------------------ */

static void accept_exchange(ax_reactor *r, ax_exchange *x, int64_t now)
{
    x->live_prev = NULL;
    x->live_next = r->live;
    if (r->live)
        r->live->live_prev = x;
    r->live = x;
    r->live_count++;
    add(&r->n.submitted, 1);
    if (ax_timers_reserve(&r->timers, r->live_count) < 0) {
        ax_flight_fail(r, x, AX_CONNECT_ERROR, ENOMEM, now);
        return;
    }
    set_phase(x, AX_PHASE_WAITING);
    int64_t prep = x->at.due - r->opt.connect_lead;
    if (prep <= now)
        ax_flight_prepare(r, x, now, false);
    else
        set_timer(r, x, WAIT_PREP, prep);
}

static void take_commands(ax_reactor *r, int64_t now)
{
    for (ax_exchange *x = take_all(&r->inbox), *next; x; x = next) {
        next = x->next;
        accept_exchange(r, x, now);
    }
    if (!atomic_load_explicit(&r->attention, memory_order_relaxed))
        return;
    /* Cancels are rare and come in crowds, so looking at every live exchange is cheap enough and needs
     * no second list whose links would have to outlive the exchange. */
    atomic_store_explicit(&r->attention, 0, memory_order_seq_cst);
    for (ax_exchange *x = r->live, *next; x; x = next) {
        next = x->live_next;
        if (atomic_load_explicit(&x->command, memory_order_acquire))
            ax_flight_cancel(r, x, now);
    }
}

static void sweep_idle(ax_reactor *r, int64_t now)
{
    if (now < r->next_sweep)
        return;
    r->next_sweep = now + SWEEP_EVERY;
    for (ax_conn *c = r->conns, *next; c; c = next) {
        next = c->all_next;
        if (c->state == AX_CONN_IDLE && now - c->idle_since >= r->opt.max_idle)
            ax_flight_close(r, c);
    }
}

/* -- The thread -------------------------------------------------------------------------------------- */

static void watch_clock_steps(ax_reactor *r)
{
    struct itimerspec far = {.it_value = {.tv_sec = INT32_MAX}};
    timerfd_settime(r->step_fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &far, NULL);
}

static void clock_stepped(ax_reactor *r)
{
    drain_fd(r->step_fd); /* fails with ECANCELED, which is the message */
    watch_clock_steps(r);
    r->pair = ax_clock_pair_now();
    add(&r->n.clock_steps, 1);
}

static int wait_events(ax_reactor *r, struct epoll_event *events, int64_t wait_ns)
{
    if (!r->no_pwait2) {
        struct timespec ts = {.tv_sec = wait_ns / AX_NS_PER_S, .tv_nsec = wait_ns % AX_NS_PER_S};
        int n = (int)syscall(SYS_epoll_pwait2, r->epoll_fd, events, MAX_EVENTS, &ts, NULL, 0);
        if (n >= 0 || (errno != ENOSYS && errno != EPERM))
            return n;
        r->no_pwait2 = true;
    }
    if (wait_ns > 0) {
        struct itimerspec in = {.it_value = {.tv_sec = wait_ns / AX_NS_PER_S, .tv_nsec = wait_ns % AX_NS_PER_S}};
        timerfd_settime(r->timer_fd, 0, &in, NULL);
    }
    return epoll_wait(r->epoll_fd, events, MAX_EVENTS, wait_ns > 0 ? -1 : 0);
}

/* A socket that an epoll return does not list had no data when the list was made, so data read later
 * arrived after that. When the list was made is only known to lie between the clock reads around the call,
 * and the later one will not do: a thread that is stopped between the list and the clock, for instance by
 * a signal on its way back to user space, would make its late reads look timely. The earlier one is always
 * true, and so is the end of a wait that ran out. For these to be of use the waits must be short: with
 * LISTING_EVERY, events that share a read of a thread which is not late have a slack below 1 ms, however
 * few sockets there are; while events come fast, waits are short without it. */
static void note_listing(ax_reactor *r, int n, int64_t before, int64_t wait_ns)
{
    if (n < 0 || n == MAX_EVENTS)
        return; /* interrupted, or cut: says nothing of those not listed */
    r->listing_ns = n == 0 ? before + wait_ns : before;
    r->listing_turn = r->turn;
}

static void note_stall(ax_reactor *r, int64_t began, int64_t took)
{
    if (took > atomic_load_explicit(&r->n.longest_turn_ns, memory_order_relaxed)) {
        atomic_store_explicit(&r->n.longest_turn_ns, took, memory_order_relaxed);
        atomic_store_explicit(&r->n.longest_turn_at_ns, began, memory_order_relaxed);
    }
}

static void end_turn_stats(ax_reactor *r, int64_t now)
{
    int64_t took = now - r->turn_started;
    ax_hdr_record(&r->hist[AX_HIST_TURN], took);
    note_stall(r, r->turn_started, took);
}

/* A long row of reads must not hold up a send that has become due meanwhile. */
static void look_up(ax_reactor *r)
{
    int64_t now = ax_now_ns();
    if (atomic_load_explicit(&r->inbox, memory_order_relaxed))
        take_commands(r, now);
    if (ax_timers_next(&r->timers) <= now)
        ax_flight_timers(r, now);
    if (r->send_head && r->send_head->fresh_send)
        ax_flight_send(r);
}

static void epoll_turn(ax_reactor *r)
{
    struct epoll_event events[MAX_EVENTS];
    int64_t now = ax_now_ns();

    take_commands(r, now);
    ax_flight_timers(r, now);
    ax_flight_send(r);
    sweep_idle(r, now);
    if (r->completed) {
        r->completed = false;
        wake(r->done_fd);
    }

    atomic_store_explicit(&r->sleeping, 1, memory_order_seq_cst);
    int64_t before = ax_now_ns();
    end_turn_stats(r, before);
    int64_t wait_ns = 0;
    if (!r->send_head && !atomic_load_explicit(&r->inbox, memory_order_seq_cst) &&
        !atomic_load_explicit(&r->attention, memory_order_seq_cst) &&
        !atomic_load_explicit(&r->closing, memory_order_seq_cst)) {
        int64_t next = ax_timers_next(&r->timers);
        if (r->conns && r->next_sweep < next)
            next = r->next_sweep;
        bool awaited = atomic_load_explicit(&r->n.in_flight, memory_order_relaxed) > 0;
        bool busy = r->last_wait_ns < LISTING_EVERY / 4;
        int64_t longest = !awaited ? 60 * AX_NS_PER_S : busy ? BUSY_LISTING_EVERY : LISTING_EVERY;
        wait_ns = next - before;
        if (wait_ns < 0)
            wait_ns = 0;
        if (wait_ns > longest)
            wait_ns = longest;
    }
    int n = wait_events(r, events, wait_ns);
    int64_t after = ax_now_ns();
    atomic_store_explicit(&r->sleeping, 0, memory_order_relaxed);
    r->last_wait_ns = after - before;
    note_stall(r, before + wait_ns, after - before - wait_ns); /* overslept */
    r->turn++;
    r->turn_started = after;
    add(&r->n.turns, 1);
    for (int i = 0; i < n; i++)
        if (events[i].data.ptr == &r->step_fd)
            clock_stepped(r); /* before any stamp of this turn is converted */
    if (after - r->pair.taken_ns > AX_PAIR_MAX_AGE_NS)
        r->pair = ax_clock_pair_now();
    for (int i = 0; i < n; i++) {
        void *what = events[i].data.ptr;
        if (i % EVENTS_PER_LOOK == EVENTS_PER_LOOK - 1)
            look_up(r);
        if (what == &r->wake_fd)
            drain_fd(r->wake_fd);
        else if (what == &r->timer_fd)
            drain_fd(r->timer_fd);
        else if (what != &r->step_fd)
            ax_flight_event(r, what, events[i].events);
    }
    note_listing(r, n, before, wait_ns);
    ax_flight_bury(r);
}

static void shut_down(ax_reactor *r)
{
    int64_t now = ax_now_ns();
    take_commands(r, now);
    while (r->live)
        ax_flight_cancel(r, r->live, now);
    while (r->conns)
        ax_flight_close(r, r->conns);
    ax_flight_bury(r);
    AX_ASSERT(r->timers.count == 0);
    AX_ASSERT(r->live_count == 0);
    AX_ASSERT(atomic_load(&r->n.sockets) == 0);
    AX_ASSERT(atomic_load(&r->n.in_flight) == 0);
    wake(r->done_fd);
}

static void *run(void *arg)
{
    ax_reactor *r = arg;
    prctl(PR_SET_NAME, "agentx-reactor", 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    if (r->opt.cpu >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)r->opt.cpu, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    r->pair = ax_clock_pair_now();
    r->turn_started = ax_now_ns();
    while (!atomic_load_explicit(&r->closing, memory_order_acquire))
        epoll_turn(r);
    shut_down(r);
    return NULL;
}

/* -- Interface ----------------------------------------------------------------------------------------- */

void ax_reactor_defaults(ax_reactor_options *o)
{
    *o = (ax_reactor_options){
        .pooling = AX_POOL_SHARED,
        .connect_lead = AX_NS_PER_S / 20,
        .max_idle = 4 * AX_NS_PER_S,
        .connect_timeout = 10 * AX_NS_PER_S,
        .drain_after_done = AX_NS_PER_S / 4,
        .drain_after_finish = 5 * AX_NS_PER_S,
        .resend_window = AX_NS_PER_S / 20,
        .resend = true,
        .cpu = -1,
    };
}

static int watch(ax_reactor *r, int *fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = fd};
    return *fd < 0 ? -1 : epoll_ctl(r->epoll_fd, EPOLL_CTL_ADD, *fd, &ev);
}

static int start_thread(ax_reactor *r)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the main thread's business */
    int err = pthread_create(&r->thread, NULL, run, r);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err) {
        errno = err;
        return -1;
    }
    r->started = true;
    pthread_getcpuclockid(r->thread, &r->cpu_clock);
    return 0;
}

ax_reactor *ax_reactor_new(const ax_endpoint *endpoints, uint32_t count, const ax_reactor_options *o)
{
    ax_reactor *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->opt = *o;
    r->pool.by_session = o->pooling == AX_POOL_SESSION;
    r->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r->step_fd = timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    r->room = malloc(AX_READ_ROOM);
    r->endpoints = malloc(count * sizeof *endpoints);
    ax_timers_init(&r->timers);
    bool ok = r->epoll_fd >= 0 && r->done_fd >= 0 && r->room && r->endpoints;
    for (int i = 0; ok && i < AX_HIST_COUNT; i++)
        ok = ax_hdr_init(&r->hist[i], AX_HDR_LOWEST, AX_HDR_HIGHEST, AX_HDR_DIGITS) == 0;
    ok = ok && watch(r, &r->wake_fd) == 0 && watch(r, &r->step_fd) == 0 && watch(r, &r->timer_fd) == 0;
    if (ok) {
        memcpy(r->endpoints, endpoints, count * sizeof *endpoints);
        r->endpoint_count = count;
        watch_clock_steps(r);
        ok = start_thread(r) == 0;
    }
    if (!ok) {
        int err = errno;
        ax_reactor_free(r);
        errno = err;
        return NULL;
    }
    return r;
}

static void rouse(ax_reactor *r)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_exchange_explicit(&r->sleeping, 0, memory_order_seq_cst))
        wake(r->wake_fd);
}

void ax_reactor_submit(ax_reactor *r, ax_exchange *x)
{
    AX_ASSERT(x->endpoint < r->endpoint_count);
    x->at.armed = ax_now_ns();
    push(&r->inbox, x);
    rouse(r);
}

void ax_reactor_cancel(ax_reactor *r, ax_exchange *x)
{
    atomic_store_explicit(&x->command, 1, memory_order_release);
    atomic_store_explicit(&r->attention, 1, memory_order_seq_cst);
    rouse(r);
}

int ax_reactor_eventfd(const ax_reactor *r)
{
    return r->done_fd;
}

ax_exchange *ax_reactor_pop_all(ax_reactor *r)
{
    return take_all(&r->outbox);
}

const ax_hdr *ax_reactor_hist(const ax_reactor *r, ax_hist h)
{
    return &r->hist[h];
}

const ax_reactor_counters *ax_reactor_counts(const ax_reactor *r)
{
    return &r->n;
}

int64_t ax_reactor_cpu_ns(const ax_reactor *r)
{
    struct timespec ts;
    if (!r->started || r->joined || clock_gettime(r->cpu_clock, &ts) < 0)
        return -1;
    return ax_timespec_ns(&ts);
}

bool ax_reactor_uses_pwait2(const ax_reactor *r)
{
    return !r->no_pwait2;
}

void ax_reactor_close(ax_reactor *r)
{
    if (!r->started || r->joined)
        return;
    atomic_store_explicit(&r->closing, 1, memory_order_seq_cst);
    wake(r->wake_fd);
    pthread_join(r->thread, NULL);
    r->joined = true;
}

void ax_reactor_free(ax_reactor *r)
{
    if (!r)
        return;
    ax_reactor_close(r);
    AX_ASSERT(!atomic_load(&r->inbox) && !atomic_load(&r->outbox));
    int fds[] = {r->epoll_fd, r->wake_fd, r->done_fd, r->step_fd, r->timer_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    for (int i = 0; i < AX_HIST_COUNT; i++)
        ax_hdr_free(&r->hist[i]);
    ax_timers_free(&r->timers);
    free(r->endpoints);
    free(r->room);
    free(r);
}

const char *ax_hist_name(ax_hist h)
{
    static const char *const names[AX_HIST_COUNT] = {
        [AX_HIST_DISPATCH_ARMED] = "dispatch_lag_armed",
        [AX_HIST_DISPATCH_REACTIVE] = "dispatch_lag_reactive",
        [AX_HIST_SEND] = "send_duration",
        [AX_HIST_CONNECT] = "connect",
        [AX_HIST_READ_LAG] = "read_lag",
        [AX_HIST_SLACK] = "slack",
        [AX_HIST_TTFT] = "ttft",
        [AX_HIST_GAP] = "inter_chunk_gap",
        [AX_HIST_TURN] = "reactor_turn",
    };
    return names[h];
}
