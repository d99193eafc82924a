"""Play recorded multi-branch tool traces through a store, and prove what is left of the world.

A trace is a JSONL file of tool calls with the keys each call read and wrote and the values it left behind. The player
registers every call as an effect, lets "the tool" run on a world of keys, decides by a plan and compensates.
"""

from effectstore.play.player import Played, Player, PlayResult
from effectstore.play.schedule import Plan, PlanError, add_blind_writes, choose_losers, interleave
from effectstore.play.trace import Call, Delta, TraceError, read_trace
from effectstore.play.world import World

__all__ = [
    "Call",
    "Delta",
    "Plan",
    "PlanError",
    "PlayResult",
    "Played",
    "Player",
    "TraceError",
    "World",
    "add_blind_writes",
    "choose_losers",
    "interleave",
    "read_trace",
]
