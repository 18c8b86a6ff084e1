"""A lane plays one tree at a time; when it has drained, the next that the sampler gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from agentx_engine.errors import CorpusError
from agentx_engine.prompt.marker import marker_digest, marker_text
from agentx_engine.replay.idle import IdleCap
from agentx_engine.replay.options import Counters, ReplayOptions
from agentx_engine.replay.protocols import Recorder, TreeIdentity, TreeSource
from agentx_engine.replay.sampler import SequentialSampler, TreeCache
from agentx_engine.replay.session import Crew, Session
from agentx_engine.replay.start import LaneStart, fresh_start, resume_start
from agentx_engine.replay.start_plan import LaneBuilder, LanePlan
from agentx_engine.replay.timers import TimerSystem
from agentx_engine.replay.tree_run import LiveTree
from agentx_engine.tree.model import ConversationTree


class Stage:
    """What all lanes of a run share: where trees come from, and which are live.

    `on_held` is called when a conversation whose time has come cannot go on.
    """

    def __init__(
        self,
        *,
        source: TreeSource,
        cache: TreeCache,
        timers: TimerSystem,
        crew: Crew,
        recorder: Recorder,
        options: ReplayOptions,
        counters: Counters,
        on_held: Callable[[], None],
    ) -> None:
        self.source = source
        self.cache = cache
        self.sampler = SequentialSampler(len(source))
        self.timers = timers
        self.crew = crew
        self.recorder = recorder
        self.options = options
        self.counters = counters
        self.live: dict[int, LiveTree] = {}  # by lane
        self.taken = 0  # trees given to lanes, in the measured phase
        self.loading = 0  # lanes that wait for a tree
        self._on_held = on_held
        self._begun = 0
        self._plays: Counter[str] = Counter()

    def may_take(self) -> bool:
        limit = self.options.tree_count
        return self.crew.dispatcher.sending and (
            limit is None or self.taken < limit or self.crew.phase.warming
        )

    async def take(self) -> tuple[int, ConversationTree] | None:
        """The next trace that has requests, and its position; None if the lane should end.

        Raises:
            CorpusError: not one trace of the corpus has a request.
        """
        for _ in range(len(self.source)):
            if not self.may_take():
                return None
            self.taken += 1
            index = self.sampler.take()
            self.loading += 1
            try:
                tree = await self.cache.acquire(index)
            finally:
                self.loading -= 1
            if tree.requests and self.crew.dispatcher.sending:
                return index, tree
            self.taken -= 1
            self.cache.release(index)
        raise CorpusError("no trace of the corpus has a request to replay: give other traces")

    async def plan(self, ratios: tuple[float, float]) -> tuple[list[Lane], LanePlan]:
        """Lanes in the middle of their recordings, each at its own t*. CorpusError if there is none."""
        options, lanes = self.options, list[Lane]()
        count = min(options.concurrency, options.tree_count or options.concurrency)
        builder = LaneBuilder(self.source, count, options.seed, *ratios, sampler=self.sampler)
        while (index := builder.ask()) is not None:
            tree = await self.cache.acquire(index)
            start = builder.offer(tree)
            if start is None:
                self.cache.release(index)
            else:
                self.taken += 1
                lanes.append(Lane(len(lanes), self, (index, tree), start))
        return lanes, builder.plan()

    def begin(self, lane: int, index: int, tree: ConversationTree, start: LaneStart | None) -> LiveTree:
        """Makes a tree live, its conversations ready to be launched; `start` None: at its first turn."""
        crew, options = self.crew, self.options
        play = self._plays[tree.trace_id]
        self._plays[tree.trace_id] += 1
        endpoint = self._begun % options.endpoints
        self._begun += 1
        root_id = crew.dispatcher.ids()
        identity = TreeIdentity(index, tree.trace_id, lane, play, endpoint, root_id)
        digest = marker_digest(options.run_id, play, lane, tree.trace_id)
        live = LiveTree(
            plan=tree,
            identity=identity,
            marker=marker_text(digest) if options.marker else None,
            timers=self.timers.group(),
            counters=self.counters,
            on_held=lambda: self._held(live),
            release_dead=options.release_dead,
        )
        if options.tree_idle_cap_ns is not None:
            clock, cap_ns, lead_ns = crew.dispatcher.clock, options.tree_idle_cap_ns, options.arm_lead_ns
            live.idle_cap = IdleCap(clock, live.timers, cap_ns, lead_ns, self._on_tree_shift)
        self.live[lane] = live
        self.counters.trees_started += 1
        if start is None:
            live.sessions[0] = Session(live, 0, crew)
            live.register(0, None)
            return live
        live.begin_at(start)
        for stream in start.streams:
            parent_id = None if stream.branch is None else root_id
            live.sessions[stream.conversation] = Session(
                live, stream.conversation, crew, parent_id, stream.turn
            )
            live.register(stream.conversation, stream.branch)
        return live

    def end(self, live: LiveTree) -> None:
        live.timers.close()
        if live.idle_cap is not None:
            live.idle_cap.stop()
        self.live.pop(live.identity.lane, None)
        self.cache.release(live.identity.index)
        self.counters.trees_finished += 1
        self.recorder.tree_finished(live.identity, "stopped" if live.halted else "drained", live.end_ns)

    def children_alive(self) -> int:
        return sum(conversation != 0 for tree in self.live.values() for conversation in tree.sessions)

    def _held(self, live: LiveTree) -> None:
        if live.idle_cap is not None:
            live.idle_cap.held()
        self._on_held()

    def _on_tree_shift(self, by_ns: int) -> None:
        self.counters.tree_shifts += 1
        self.counters.tree_shift_ns += by_ns


class Lane:
    """Place for one live tree.

    `prepare` takes the first tree (unless it is `given`), `build` makes it live, `launch` starts its
    conversations, `play` waits for it and goes on with the next. Before the launch, `prime` and `accelerate`
    are the stages of a warmup, and `resume` says where the tree stands after it.
    """

    def __init__(
        self,
        number: int,
        stage: Stage,
        given: tuple[int, ConversationTree] | None = None,
        start: LaneStart | None = None,
    ) -> None:
        self._number = number
        self._stage = stage
        self._taken = given
        self._start = start  # of the tree that is live or about to be; None: at its first turn
        self._live: LiveTree | None = None
        self.playing = False  # `play` runs

    @property
    def taken(self) -> bool:
        return self._taken is not None or self._live is not None

    @property
    def start(self) -> LaneStart:
        """Where the lane's tree begins, before any of it was sent."""
        if self._start is None:
            assert self._taken is not None
            return fresh_start(self._taken[1], self._number)
        return self._start

    async def prepare(self) -> None:
        self._taken = await self._stage.take()
        self._start = None

    def build(self) -> None:
        if self._taken is not None:
            self._live = self._stage.begin(self._number, *self._taken, self._start)
            self._taken = None

    def build_primers(self) -> None:
        for session in self._primed():
            session.build_primer()

    def build_due(self, streams: Sequence[tuple[int, int]], within_ns: int) -> None:
        """Builds the first bodies that are due so soon after the start; `streams` as for `launch`."""
        if self._live is not None:
            for conversation, due_ns in streams:
                if due_ns <= within_ns:
                    self._live.sessions[conversation].build()

    def prime(self, start_ns: int, primers_ns: Sequence[int], known_ns: int) -> None:
        """Starts the warmup at `start_ns`; the primers are due so long after it."""
        self._begin_clock(start_ns)
        for session, due_ns in zip(self._primed(), primers_ns, strict=True):
            session.prime(start_ns + due_ns, known_ns)

    def accelerate(self, due_ns: int) -> None:
        """Lets every conversation go on at once."""
        if self._live is not None:
            for session in list(self._live.sessions.values()):
                session.launch(due_ns, due_ns)

    def resume(self, moved: bool) -> LaneStart:
        """Where the tree stands after the warmup; `moved`: it may have gone on from where it began."""
        live = self._live
        if live is None or not moved:
            return self.start if live is None else self._start or fresh_start(live.plan, self._number)
        return resume_start(
            live.plan,
            self._number,
            live={number: session.next_turn for number, session in live.sessions.items()},
            done=live.progress(),
            started=live.started,
            t_star_ms=None if self._start is None else self._start.t_star_ms,
        )

    def launch(self, start_ns: int, known_ns: int, streams: Sequence[tuple[int, int]] = ((0, 0),)) -> None:
        """Starts the tree; `streams` are (conversation, when its next turn is due, from `start_ns`).

        That was known at `known_ns`.
        """
        live = self._live
        if live is None:
            return
        self._begin_clock(start_ns)
        live.suspended = False
        if live.idle_cap is not None and not self._stage.crew.phase.warming:
            live.idle_cap.start(start_ns)
        for conversation, due_ns in streams:
            if (
                session := live.sessions.get(conversation)
            ) is not None:  # not ended by the run's end meanwhile
                session.launch(start_ns + due_ns, known_ns)

    def retire(self) -> None:
        """Lets go of the lane's tree if it has drained."""
        if self._live is not None and self._live.drained.done():
            self._stage.end(self._live)
            self._live = None

    async def play(self) -> None:
        """Plays on until the lane should end; in the warmup, until its quota is reached."""
        stage, dispatcher, phase = self._stage, self._stage.crew.dispatcher, self._stage.crew.phase
        self.playing = True
        while (live := self._live) is not None:
            await live.drained
            if self._live is not live:  # the hand-over has been quicker
                continue
            self.retire()
            drained_ns = live.end_ns
            if dispatcher.end_ns is not None and drained_ns >= dispatcher.end_ns:
                break
            if phase.warming and not (phase.accelerated and phase.admits(self._number)):
                break
            await self.prepare()
            if stage.may_take():
                stage.cache.load_ahead(stage.sampler.peek())
            self.build()
            self.build_due(((0, 0),), 0)
            self.launch(drained_ns, drained_ns)
        self.playing = False

    def _primed(self) -> list[Session]:
        if self._live is None or self._start is None:
            return []
        return [self._live.sessions[primer.conversation] for primer in self._start.primers]

    def _begin_clock(self, start_ns: int) -> None:
        """The tree's requests are due from `start_ns` on."""
        live = self._live
        if live is None:
            return
        if not live.announced:
            live.announced = True
            self._stage.recorder.tree_started(live.identity, start_ns)
        live.end_ns = max(live.end_ns, start_ns)
        live.idle_since_ns = max(live.idle_since_ns, start_ns)
