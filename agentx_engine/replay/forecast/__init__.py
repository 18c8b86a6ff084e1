"""What a run will look like: the replay under simulated time on a simple model of a server.

`forecast` runs it; `Forecast` is the result and the JSON document; `ServerSpec` describes the server.
"""

from agentx_engine.replay.forecast.document import Forecast
from agentx_engine.replay.forecast.run import forecast
from agentx_engine.replay.forecast.server import ServerSpec

__all__ = ["Forecast", "ServerSpec", "forecast"]
