"""The ids of a request's blocks, as numbers; a list that is none becomes an error about the file."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentx_engine.core.ids import IdsError, parse_ids
from agentx_engine.corpus.explain import bad_ids
from agentx_engine.corpus.model import Subagent, Trace


def request_ids(trace: Trace, entry: int, inner: int | None = None) -> NDArray[np.int32]:
    """Ids of `trace.requests[entry]`, or of its `requests[inner]` if that is a subagent.

    Raises CorpusError that names file, trace and request if the text is not a list of ids.
    """
    request = trace.requests[entry]
    if isinstance(request, Subagent):
        if inner is None:
            raise TypeError(f"entry {entry} is a subagent: say which of its requests")
        request = request.requests[inner]
    try:
        return parse_ids(request.hash_ids)
    except IdsError as error:
        raise bad_ids(trace, entry, inner, request.hash_ids, error) from None
