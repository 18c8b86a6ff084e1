"""Where a lane begins: t*, the state of its tree at t*, and the requests that warm its caches.

A benchmark that starts every session at its first turn measures cold caches and short prompts for as long
as the sessions need to grow. So each lane is dropped into the middle of its recording: a moment t* is drawn,
what was recorded before t* counts as done, and the next turn of each stream that was alive at t* is what
the lane sends first. One request per such stream, the *primer*, puts its history into the server's cache
before anything is measured: the turn before the next one, whole prompt, one token of output.

What is decided here is pure: a tree, a lane's number, the run's seed and two ratios give the same start in
every process, whatever the server does. `LaneStart` says which conversations are live at which turn
(`streams`), whom a gated root waits for (`waits_for`), what each branch is to the lane (`branches`), and
which turns count as returned for the barriers (`done`). `resume_start` gives the same for a tree that warmup
has moved on from t*. When things are sent depends on all lanes together: see `replay.start_plan`.

**Times.** t* is a float of milliseconds, as NumPy draws it, and so is what is measured from it: the offset
of a stream and the lead of a primer. Differences are taken between floats; whatever is scheduled is an
integer of nanoseconds, rounded once at the end. Rounding each offset first would move start times by a
nanosecond against the official harness.

**What lies before t* is over.** A turn recorded before t* counts as returned although it may have been in
flight at t*. A branch has begun if its spawning turn is over, or if t* has reached its start: in files that
are not in time order the spawning turn may then still be to come, and must not start it again. A branch that
nobody is left to start is over, so its children hold neither gates nor barriers.

Source: agentx-v1, sections 5.2 to 5.4, 5.6 and 6.9.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from agentx_engine.tree.model import Conversation, ConversationTree, Turn

NS_PER_MS = 1e6

# "ahead": the spawning turn, still to come, starts it as usual. "live": it was started, and some child still
# has turns. "over": all children have ended, or nobody is left to start them; it must never be started.
BranchState = Literal["ahead", "live", "over"]


class StreamStart(msgspec.Struct, frozen=True):
    """A conversation that is live at the start, and the turn with which it goes on.

    Attributes:
        conversation, branch: indices into the tree; `id`, `branch_id`: their names. No branch: the root.
        turn: the next turn. 0 for a child that has not begun yet.
        offset_ms: recorded start of that turn, counted from t*; never negative.
        gated: the root, and its next turn waits for a live child. It is not sent but released.
        feeds_turn: root turn that waits for this child; None = nobody does (or the root itself).
    """

    conversation: int
    id: str
    turn: int
    offset_ms: float
    gated: bool = False
    branch: int | None = None
    branch_id: str | None = None
    feeds_turn: int | None = None


class Primer(msgspec.Struct, frozen=True):
    """A warmup request: `turn` with its whole prompt and an output limit of one token.

    It starts no children, passes no barrier, and nothing follows its return. `lead_ms`: how long before t*
    the turn was recorded, not clamped.
    """

    conversation: int
    id: str
    turn: int
    lead_ms: float


class Prefix(NamedTuple):
    """The first `turns` turns of a conversation count as returned."""

    conversation: int
    id: str
    turns: int


class LaneStart(msgspec.Struct, frozen=True, kw_only=True):
    """The state in which a lane's tree begins to be replayed.

    Conversations that are neither in `streams` nor children of a branch that is "ahead" have ended.

    Attributes:
        seed: of this lane, see `lane_seed`; None where nothing was drawn.
        first_ms, last_ms: first and last recorded turn start of the tree.
        t_star_ms: moment of the recording that offsets count from; None: the tree was split by number of
            turns, times unused, offsets 0.
        streams: root first, then children in the order of the tree's branches.
        primers: in the order of their streams.
        done: conversations with turns that count as returned, in the order of the tree.
        branches: state of each branch of the tree.
    """

    lane: int
    trace_id: str
    seed: int | None
    first_ms: float
    last_ms: float
    t_star_ms: float | None
    streams: tuple[StreamStart, ...]
    primers: tuple[Primer, ...] = ()
    done: tuple[Prefix, ...] = ()
    branches: tuple[BranchState, ...] = ()

    @property
    def root(self) -> StreamStart | None:
        """None if the root has no turn left."""
        first = self.streams[0]
        return first if first.branch is None else None

    @property
    def ready(self) -> tuple[StreamStart, ...]:
        """Streams whose next turn is sent: all but a gated root. Extra warmup goes in this order too."""
        return tuple(stream for stream in self.streams if not stream.gated)

    @property
    def waits_for(self) -> tuple[int, ...]:
        """Conversations that must end before a gated root goes on; empty if it is not gated."""
        root = self.root
        if root is None or not root.gated:
            return ()
        return tuple(stream.conversation for stream in self.streams if stream.feeds_turn == root.turn)

    @property
    def slot_taken_by_lane(self) -> Literal["gated_root", "rootless"] | None:
        """Why no root request will take the lane's slot when the phase begins; None: one will."""
        root = self.root
        if root is None:
            return "rootless"
        return "gated_root" if root.gated else None


def lane_seed(seed: int, trace_id: str, lane: int) -> int:
    """Seed of a lane's draws: the first 8 bytes, big-endian, of SHA-256 of "<seed>:<trace>:<lane>"."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{trace_id}:{lane}".encode()).digest()[:8], "big")


def sample_t_star(seed: int, first_ms: float, last_ms: float, r0: float, r1: float) -> float:
    """One uniform draw (NumPy, PCG64) between the shares `r0` and `r1` of a recording, ms.

    `seed` is the lane's. Nothing is drawn if both ends are one moment. The ratios may lie outside 0 to 1, as
    the harness allows. ValueError: not finite, or `r0` above `r1`.
    """
    if not (math.isfinite(r0) and math.isfinite(r1) and r0 <= r1):
        raise ValueError(f"ratios must be finite and in order, not {r0} and {r1}")
    length = last_ms - first_ms
    low, high = first_ms + r0 * length, first_ms + r1 * length
    if low == high:
        return low
    return float(np.random.default_rng(seed).uniform(low, high))


def lane_start(tree: ConversationTree, lane: int, seed: int, r0: float, r1: float) -> LaneStart | None:
    """The state of a tree at the lane's t*; `seed` is the run's. None: the tree is not usable.

    If no stream is live at t* (only with ratios above 1), the root is split at a number of turns: its turn k
    is the primer and turn k+1 the next, k drawn between the same shares of its turns. A tree without
    requests, or with nothing live and fewer than two root turns, is not usable.
    """
    starts = [_start_ms(turn) for conversation in tree.conversations for turn in conversation.turns]
    if not starts:
        return None
    first_ms, last_ms = min(starts), max(starts)
    own_seed = lane_seed(seed, tree.trace_id, lane)
    t_star_ms = sample_t_star(own_seed, first_ms, last_ms, r0, r1)
    done = [_turns_before(conversation, t_star_ms) for conversation in tree.conversations]
    started = {
        number
        for number, branch in enumerate(tree.branches)
        if branch.spawn_turn < done[0] or branch.start_ns / NS_PER_MS <= t_star_ms
    }
    alive = [0, *(child for number in started for child, _ in tree.branches[number].children)]
    live = {c: done[c] for c in alive if done[c] < len(tree.conversations[c].turns)}
    if not live:
        return _split_by_turns(tree, lane, own_seed, r0, r1)
    streams = _streams(tree, live, started, t_star_ms)
    return LaneStart(
        lane=lane,
        trace_id=tree.trace_id,
        seed=own_seed,
        first_ms=first_ms,
        last_ms=last_ms,
        t_star_ms=t_star_ms,
        streams=streams,
        primers=tuple(
            Primer(s.conversation, s.id, s.turn - 1, t_star_ms - _start_ms(_turn_of(tree, s, -1)))
            for s in streams
            if s.turn
        ),
        done=_prefixes(tree, done),
        branches=_branch_states(tree, live, started),
    )


def resume_start(
    tree: ConversationTree,
    lane: int,
    *,
    live: Mapping[int, int],
    done: Sequence[int],
    started: Collection[int],
    t_star_ms: float | None = None,
) -> LaneStart:
    """The state of a tree that extra warmup requests have moved on (the handoff into profiling).

    Args:
        live: next turn of each live conversation, parked and held ones included. Not empty.
        done: by conversation, how many turns have returned.
        started: branches whose children have been registered.
        t_star_ms: the lane's t*; None for a tree that was begun at its first turn, whose offsets count from
            the start of that turn.
    """
    if not live:
        raise ValueError(f"{tree.trace_id}: no conversation is live, so there is nothing to resume")
    starts = [_start_ms(turn) for conversation in tree.conversations for turn in conversation.turns]
    if t_star_ms is None:
        t_star_ms = _start_ms(tree.root.turns[0])
    return LaneStart(
        lane=lane,
        trace_id=tree.trace_id,
        seed=None,
        first_ms=min(starts),
        last_ms=max(starts),
        t_star_ms=t_star_ms,
        streams=_streams(tree, live, started, t_star_ms),
        done=_prefixes(tree, done),
        branches=_branch_states(tree, live, started),
    )


def fresh_start(tree: ConversationTree, lane: int) -> LaneStart:
    """The whole tree from its first turn: what a lane gets whose tree has ended during warmup."""
    return resume_start(tree, lane, live={0: 0}, done=[0] * len(tree.conversations), started=())


def _split_by_turns(tree: ConversationTree, lane: int, seed: int, r0: float, r1: float) -> LaneStart | None:
    turns = len(tree.root.turns)
    if turns < 2:
        return None
    low, high = (min(max(0, int(ratio * turns)), turns - 2) for ratio in (r0, r1))
    warm = int(np.random.default_rng(seed).integers(low, high, endpoint=True))
    live = {0: warm + 1}
    starts = [_start_ms(turn) for conversation in tree.conversations for turn in conversation.turns]
    done = [0] * len(tree.conversations)
    done[0] = warm + 1
    for branch in tree.branches:
        if branch.spawn_turn <= warm:
            for child, _ in branch.children:
                done[child] = len(tree.conversations[child].turns)
    return LaneStart(
        lane=lane,
        trace_id=tree.trace_id,
        seed=seed,
        first_ms=min(starts),
        last_ms=max(starts),
        t_star_ms=None,
        streams=_streams(tree, live, (), None),
        primers=(Primer(0, tree.root.id, warm, 0.0),),
        done=_prefixes(tree, done),
        branches=_branch_states(tree, live, ()),
    )


def _start_ms(turn: Turn) -> float:
    return turn.start_ns / NS_PER_MS


def _turn_of(tree: ConversationTree, stream: StreamStart, step: int = 0) -> Turn:
    return tree.conversations[stream.conversation].turns[stream.turn + step]


def _turns_before(conversation: Conversation, t_star_ms: float) -> int:
    """Turns in front of the first that starts at t* or later; all of them if none does."""
    for turn in conversation.turns:
        if _start_ms(turn) >= t_star_ms:
            return turn.index
    return len(conversation.turns)


def _streams(
    tree: ConversationTree, live: Mapping[int, int], started: Collection[int], t_star_ms: float | None
) -> tuple[StreamStart, ...]:
    def stream(conversation: int, branch: int | None, feeds_turn: int | None) -> StreamStart:
        turn = live[conversation]
        played = tree.conversations[conversation]
        offset_ms = 0.0 if t_star_ms is None else max(0.0, _start_ms(played.turns[turn]) - t_star_ms)
        branch_id = None if branch is None else tree.branches[branch].id
        gated = branch is None and any(child.feeds_turn == turn for child in children)
        return StreamStart(conversation, played.id, turn, offset_ms, gated, branch, branch_id, feeds_turn)

    children: list[StreamStart] = []
    for number, branch in enumerate(tree.branches):
        if number in started:
            children += [stream(c, number, branch.join_turn) for c, _ in branch.children if c in live]
    return ((stream(0, None, None),) if 0 in live else ()) + tuple(children)


def _branch_states(
    tree: ConversationTree, live: Mapping[int, int], started: Collection[int]
) -> tuple[BranchState, ...]:
    root_next = live.get(0, len(tree.root.turns))
    states: list[BranchState] = []
    for number, branch in enumerate(tree.branches):
        if number in started:
            states.append("live" if any(child in live for child, _ in branch.children) else "over")
        else:
            states.append("ahead" if root_next <= branch.spawn_turn else "over")
    return tuple(states)


def _prefixes(tree: ConversationTree, done: Sequence[int]) -> tuple[Prefix, ...]:
    return tuple(
        Prefix(number, conversation.id, done[number])
        for number, conversation in enumerate(tree.conversations)
        if done[number]
    )
