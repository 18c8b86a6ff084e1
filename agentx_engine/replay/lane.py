"""A lane plays one tree at a time; when it has drained, the next that the sampler gives."""

from __future__ import annotations

from collections import Counter

from agentx_engine.errors import CorpusError
from agentx_engine.prompt.marker import marker_digest, marker_text
from agentx_engine.replay.options import Counters, ReplayOptions
from agentx_engine.replay.protocols import Recorder, TreeIdentity, TreeSource
from agentx_engine.replay.sampler import SequentialSampler, TreeCache
from agentx_engine.replay.session import Crew, Session
from agentx_engine.replay.timers import TimerSystem
from agentx_engine.replay.tree_run import LiveTree
from agentx_engine.tree.model import ConversationTree


class Stage:
    """What all lanes of a run share: where trees come from, and which are live."""

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
        self.taken = 0  # trees given to lanes
        self._plays: Counter[str] = Counter()

    def may_take(self) -> bool:
        limit = self.options.tree_count
        return self.crew.dispatcher.sending and (limit is None or self.taken < limit)

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
            tree = await self.cache.acquire(index)
            if tree.requests and self.crew.dispatcher.sending:
                return index, tree
            self.taken -= 1
            self.cache.release(index)
        raise CorpusError("no trace of the corpus has a request to replay: give other traces")

    def begin(self, lane: int, index: int, tree: ConversationTree) -> tuple[LiveTree, Session]:
        """Makes a tree live, its root ready to be launched."""
        crew, options = self.crew, self.options
        play = self._plays[tree.trace_id]
        self._plays[tree.trace_id] += 1
        endpoint = self.counters.trees_started % options.endpoints
        root_id = crew.dispatcher.ids()
        identity = TreeIdentity(index, tree.trace_id, lane, play, endpoint, root_id)
        digest = marker_digest(options.run_id, play, lane, tree.trace_id)
        live = LiveTree(
            plan=tree,
            identity=identity,
            marker=marker_text(digest) if options.marker else None,
            timers=self.timers.group(),
            counters=self.counters,
        )
        self.live[lane] = live
        self.counters.trees_started += 1
        return live, Session(live, 0, crew)

    def end(self, live: LiveTree) -> None:
        live.timers.close()
        self.live.pop(live.identity.lane, None)
        self.cache.release(live.identity.index)
        self.counters.trees_finished += 1
        self.recorder.tree_finished(live.identity, "stopped" if live.halted else "drained", live.end_ns)


class Lane:
    """Place for one live tree.

    `prepare` takes the first tree, `build` makes it live with its first request ready, `launch` starts it,
    `play` waits for it and goes on with the next.
    """

    def __init__(self, number: int, stage: Stage) -> None:
        self._number = number
        self._stage = stage
        self._taken: tuple[int, ConversationTree] | None = None
        self._live: LiveTree | None = None
        self._root: Session | None = None

    async def prepare(self) -> None:
        self._taken = await self._stage.take()

    def build(self) -> None:
        if self._taken is not None:
            self._live, self._root = self._stage.begin(self._number, *self._taken)
            self._root.build()

    def launch(self, start_ns: int, known_ns: int) -> None:
        """Starts the tree, its first request due at `start_ns`, which was known at `known_ns`."""
        if self._live is not None and self._root is not None:
            self._live.end_ns = start_ns
            self._live.register(0, None)
            self._stage.recorder.tree_started(self._live.identity, start_ns)
            self._root.launch(start_ns, known_ns)

    async def play(self) -> None:
        stage, dispatcher = self._stage, self._stage.crew.dispatcher
        while self._live is not None:
            await self._live.drained
            stage.end(self._live)
            drained_ns, self._live, self._root = self._live.end_ns, None, None
            if dispatcher.end_ns is not None and drained_ns >= dispatcher.end_ns:
                return
            await self.prepare()
            if stage.may_take():
                stage.cache.load_ahead(stage.sampler.peek())
            self.build()
            self.launch(drained_ns, drained_ns)
