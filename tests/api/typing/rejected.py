"""Each marked line is a mistake that the type checker must find; `test_typing` counts them one by one."""

from __future__ import annotations

import effectstore
from effectstore import Inverse, Policy, Store


@effectstore.tool(inverse=Inverse("release"))
def reserve(seat: int) -> str:
    """Reserve a seat."""
    return str(seat)


def mistakes(store: Store) -> None:
    reserve("one")  # REJECT a parameter of another type
    reserve(1).bit_length()  # REJECT a result of another type
    branch = store.branch("A", reads="dirty")  # REJECT a choice that does not exist
    branch.abort()  # REJECT no reason
    branch.abort("because")  # REJECT a reason by position
    effect = branch.register("put", {})
    effect.done()  # REJECT no result
    store.commit("A")  # REJECT a name where a token is needed
    store.commit(effect, escalate="maybe")  # REJECT a choice that does not exist
    store.compensate(rollback=None)  # REJECT None never means everything
    store.freeze(by="ops")  # REJECT no reason
    Policy(authority="nobody")  # REJECT a choice that does not exist
    store.effect("17")  # REJECT an id is a number
