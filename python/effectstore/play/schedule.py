"""In which order calls are played, what is added to them, and what is decided in the end. Seeds make it repeatable."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from effectstore.play.trace import NOTHING, Call, Delta

MOST_BLIND_WRITES = 3


class PlanError(ValueError):
    """A plan names a branch that the run does not have, or decides one branch both ways."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the merge authority decides: branches to abort, and branches to commit (None: all that survives)."""

    abort: tuple[str, ...] = ()
    commit: tuple[str, ...] | None = None

    def check(self, branches: Iterable[str]) -> None:
        """Raises `PlanError` if the plan does not fit a run with these branches."""
        known = set(branches)
        named = [*self.abort, *(self.commit or ())]
        strangers = sorted(set(named) - known)
        if strangers:
            raise PlanError(f"no branch {', '.join(strangers)} in this run; it has {', '.join(sorted(known))}")
        both = sorted(set(self.abort) & set(self.commit or ()))
        if both:
            raise PlanError(f"{', '.join(both)}: to be aborted and committed at once")


def branches_of(calls: Iterable[Call]) -> tuple[str, ...]:
    """The branches of the calls, in order of their first call."""
    return tuple(dict.fromkeys(call.branch for call in calls))


def choose_losers(calls: Iterable[Call], seed: int | str) -> tuple[str, ...]:
    """Some branches to abort, at least one, and never all of several; the same for the same seed."""
    branches = branches_of(calls)
    source = random.Random(f"losers {seed}")
    count = source.randint(1, max(1, len(branches) - 1))
    chosen = set(source.sample(branches, count))
    return tuple(branch for branch in branches if branch in chosen)


def interleave(calls: Sequence[Call], seed: int | str) -> list[Call]:
    """A random merge of the branches that keeps each branch's own order; every such merge is equally likely."""
    source = random.Random(f"interleave {seed}")
    order = [call.branch for call in calls]
    source.shuffle(order)
    waiting = {branch: iter([call for call in calls if call.branch == branch]) for branch in branches_of(calls)}
    return [next(waiting[branch]) for branch in order]


def add_blind_writes(calls: Sequence[Call], seed: int | str) -> list[Call]:
    """The calls with one to three further calls that overwrite, unread, a key that an earlier call has written.

    Half of them are made by an agent with a branch of its own, the others by a branch of the run. A run that writes
    nothing stays as it is.
    """
    source = random.Random(f"blind {seed}")
    result = list(calls)
    if not any(call.writes for call in calls):
        return result
    for number in range(source.randint(1, MOST_BLIND_WRITES)):
        at, overwritten = source.choice([(at, call) for at, call in enumerate(result) if call.writes])
        key = source.choice(overwritten.writes)
        branch, agent = f"blind-{number}", f"blind-agent-{number}"
        if source.random() < 0.5:
            host = source.choice(calls)
            branch, agent = host.branch, host.agent
        place = source.randint(at + 1, len(result))
        result.insert(place, _blind_write(calls, branch, agent, key, number))
    return result


def _blind_write(calls: Sequence[Call], branch: str, agent: str, key: str, number: int) -> Call:
    value = {"written_blindly": number}
    return Call(
        run=calls[0].run,
        branch=branch,
        agent=agent,
        seq=max(call.seq for call in calls) + 1 + number,
        tool="Blind.write",
        args={"key": key, "value": value},
        reads=(),
        writes=(key,),
        result=None,
        restore_tool="Blind.restore",
        # What the key holds before is seen only when the call is made: the player asks the world then.
        before=NOTHING,
        redo=Delta({key: value}, ()),
        reversibility="full",
    )
