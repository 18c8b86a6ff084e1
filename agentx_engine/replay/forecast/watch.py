"""What a forecast keeps of its replay: a few integers per request and per tree."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from agentx_engine.replay.phase import WARMUP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentx_engine.metrics.record import RequestIdentity, RequestRecord
    from agentx_engine.replay.protocols import TreeEnd, TreeIdentity

Column = Literal[
    "sent", "first", "end", "lane", "input", "output", "cached", "hits", "blocks", "complete", "warmup"
]
Rows = dict[Column, "NDArray[np.int64]"]
_COLUMNS: tuple[Column, ...] = get_args(Column)


class TreePlay(NamedTuple):
    tree: TreeIdentity
    start_ns: int
    end_ns: int | None  # None: it had not drained when the run ended


class Watch:
    """`Recorder` of a forecast. `on_tree_end` is told which tree nobody plays any more."""

    def __init__(self, on_tree_end: Callable[[TreeIdentity], None]) -> None:
        self.plays: list[TreePlay] = []  # in the order of their starts
        self._live: dict[int, int] = {}  # lane -> place in `plays`
        self._on_tree_end = on_tree_end
        self._rows = array("q")

    def tree_started(self, tree: TreeIdentity, start_ns: int) -> None:
        self._live[tree.lane] = len(self.plays)
        self.plays.append(TreePlay(tree, start_ns, None))

    def tree_finished(self, tree: TreeIdentity, reason: TreeEnd, end_ns: int) -> None:
        place = self._live.pop(tree.lane, None)
        if place is not None and reason == "drained":
            self.plays[place] = self.plays[place]._replace(end_ns=end_ns)
        self._on_tree_end(tree)

    def started(self, identity: RequestIdentity) -> None:
        pass

    def withdrawn(self, identity: RequestIdentity) -> None:
        pass

    def finished(self, record: RequestRecord) -> None:
        identity, stamps, usage = record.identity, record.result.stamps, record.result.usage
        if stamps.first_sent is None or usage is None or stamps.end is None:
            return  # cancelled before it was sent
        first = stamps.first_content
        self._rows.extend(
            (
                stamps.first_sent,
                stamps.end if first is None else first,
                stamps.end,
                identity.lane,
                usage.prompt or 0,
                usage.completion or 0,
                usage.cached or 0,
                identity.hit_blocks,
                identity.total_blocks,
                record.result.outcome.ok,
                identity.phase == WARMUP,
            )
        )

    def columns(self, *, warmup: bool) -> Rows:
        """One array per column: the requests of a phase in the order in which they were sent. Times are the
        clock's."""
        table = np.array(self._rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
        table = table[table[:, _COLUMNS.index("warmup")] == warmup]
        table = table[np.argsort(table[:, 0], kind="stable")]
        return {name: table[:, place].copy() for place, name in enumerate(_COLUMNS)}
