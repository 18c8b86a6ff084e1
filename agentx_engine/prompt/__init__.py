"""Prompts: word pools, message text, the cache-bust marker, and the JSON around them."""

from agentx_engine.prompt.body import BodyTemplate
from agentx_engine.prompt.builder import ConversationPrompt, Overhead, PromptBuilder
from agentx_engine.prompt.pool import default_pool, load_pool

__all__ = [
    "BodyTemplate",
    "ConversationPrompt",
    "Overhead",
    "PromptBuilder",
    "default_pool",
    "load_pool",
]
