"""Reading a rollback's plan."""

from typing import TYPE_CHECKING, Any, cast

from effectstore._payload import load
from effectstore._time import optional_moment
from effectstore._values import Plan, PlannedStep

if TYPE_CHECKING:
    from effectstore import _effectstore as core
    from effectstore._choices import Reversibility
    from effectstore._session import Session


def read_plan(session: "Session", rollback: int) -> Plan:
    """The plan of a rollback, with the arguments that its inverses will get."""
    digest, steps = session.handle.plan(rollback)
    return Plan(digest.hex(), tuple(_step(session, raw) for raw in steps))


def _step(session: "Session", raw: "core._PlannedStep") -> PlannedStep:
    effect, tool, agent, reversibility, deadline_ms = raw
    inverse = session.handle.effect(effect).inverse
    calls: list[Any] = [] if inverse is None else [(name, args and load(args, "args")) for name, args in inverse[0]]
    args = calls[0][1] if len(calls) == 1 else calls or None
    return PlannedStep(effect, tool, args, agent, cast("Reversibility", reversibility), optional_moment(deadline_ms))
