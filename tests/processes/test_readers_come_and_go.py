"""Processes open, look, close and are killed while others commit: nobody sees a state that the next look takes back.

LMDB numbers a reader's state first and copies the state's page afterwards; a commit in between must not show. The
window is a few instructions wide, so commits are as quick as they can be (in memory), and there are more readers than
processors.
`EFFECTSTORE_READERS_S=60` looks longer.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import effectstore
from support import Child

SECONDS = float(os.environ.get("EFFECTSTORE_READERS_S", "4"))

WRITER = """
    import sys, effectstore
    from effectstore import Inverse
    inverse = Inverse("unset", {})
    with effectstore.open(sys.argv[3]) as store:
        branch = store.branch(sys.argv[4])
        while True:
            for _ in range(500):
                branch.register("set", after=(), inverse=inverse)
            branch.abort(reason="enough")
            branch = store.branch(sys.argv[4] + str(branch.id))
"""

READER = """
    import sys, effectstore
    seen = 0
    while True:
        with effectstore.open(sys.argv[3]) as store:
            for _ in range(200):
                head = max((record.seq for record in store.log(since=seen)), default=seen)
                assert head >= seen
                seen = head
                store.metrics()
            if seen % 2:
                store.branch(f"reader {seen}")
"""


@pytest.fixture
def quick() -> Iterator[Path]:
    """A store in memory, where a commit takes microseconds."""
    at = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))  # noqa: S108
    yield at / "store"
    shutil.rmtree(at)


def test_a_reader_that_comes_between_two_commits_sees_no_state_that_goes_back(quick: Path, child: Child) -> None:
    chance = random.Random(time.time_ns())
    effectstore.open(quick).close()
    started = 0

    roles = [WRITER, WRITER, READER, READER, READER]
    processes = [child(code, quick, f"first {place}") for place, code in enumerate(roles)]
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        time.sleep(0.2)
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        place = chance.randrange(len(processes))
        processes[place].kill()
        processes[place].communicate()
        started += 1
        processes[place] = child(roles[place], quick, f"next {started}")
    for process in processes:
        process.kill()
        process.communicate()
    with effectstore.open(quick) as store:
        store.verify()
