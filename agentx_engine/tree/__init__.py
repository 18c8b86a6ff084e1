"""From a recorded trace to the tree of conversations that is replayed. Pure functions, no I/O."""

from agentx_engine.tree.build import build_tree
from agentx_engine.tree.document import to_document
from agentx_engine.tree.options import TreeOptions

__all__ = ["TreeOptions", "build_tree", "to_document"]
