"""Random command sequences, played on the store through its public API and on the reference model beside it.

Two sources feed the same player: seeds, whose even bytes make rare commands meet, and hypothesis, which likes extremes
and repetition. `EFFECTSTORE_SEED` is the first seed (a failure prints the one to set), `EFFECTSTORE_MODEL_STEPS` the
number of steps (default 20,000).
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from .invariants import Watch
from .peer import StorePeer
from .play import Play
from .script import COMMAND_BYTES, SETTINGS, Setting
from .shrink import shrink

SEED = int(os.environ.get("EFFECTSTORE_SEED", "20261130"))
STEPS = int(os.environ.get("EFFECTSTORE_MODEL_STEPS", "20000"))
COMMANDS = 72
# Some commands find nothing to do and some make several steps; a sequence makes at least 60 on average.
SEQUENCES = max(4, -(-STEPS // 60 // len(SETTINGS)))
DRAWN = SEQUENCES // 4
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
drawn_scripts = st.lists(
    st.binary(min_size=COMMAND_BYTES, max_size=COMMAND_BYTES), min_size=COMMANDS, max_size=COMMANDS + 8
)
counted = {"steps": 0, "sequences": 0, "reopened": 0, "killed": 0}
played: set[tuple[str, str]] = set()


# What is compared does not depend on the disk, and thousands of stores are opened: memory will do.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # Only a place, no secret.


def load_api() -> Any:
    """The package with its extension, or a reason to skip."""
    try:
        api = importlib.import_module("effectstore")
    except ImportError as error:
        pytest.skip(f"the extension is not built: {error}")
    if not hasattr(api, "open"):
        pytest.skip("the extension is not built: effectstore has no open()")
    return api


def script_of(number: int) -> list[bytes]:
    """The commands of a seed."""
    random = Random(number)
    return [random.randbytes(COMMAND_BYTES) for _ in range(COMMANDS)]


def play_alone(play: Play, script: list[bytes]) -> None:
    """The model by itself, every invariant after every command."""
    watch = Watch()
    for command in script:
        play.play(command)
        watch.check(play.model)
    play.finish()
    watch.check(play.model)


def play_beside(play: Play, script: list[bytes]) -> None:
    """Model and store side by side; the store is reopened in the middle of every third sequence.

    In every sixteenth, what a process killed after the step would leave is opened and looked at, after every step.
    """
    assert play.peer is not None
    play.kills = script[1][-1] % 16 == 0
    for place, command in enumerate(script):
        play.play(command)
        if place == len(script) // 2 and script[0][-1] % 3 == 0:
            play.reopen()
    play.finish()
    play.peer.finish()


def with_store(setting: Setting, script: list[bytes]) -> Play:
    """Play a script on a fresh store; the play is kept by the error that ends it."""
    directory = Path(tempfile.mkdtemp(prefix="effectstore-model-", dir=MEMORY))
    peer = StorePeer(load_api(), directory / "store")
    play = Play(setting, peer)
    try:
        play_beside(play, script)
    except Exception as error:
        error.add_note("\n".join(play.story))
        raise
    finally:
        peer.close_quietly()
        shutil.rmtree(directory, ignore_errors=True)
    return play


def without_store(setting: Setting, script: list[bytes]) -> Play:
    """Play a script on the model alone."""
    play = Play(setting)
    try:
        play_alone(play, script)
    except Exception as error:
        error.add_note("\n".join(play.story))
        raise
    return play


Run = Callable[[Setting, list[bytes]], Play]


def attempt(run: Run, setting: Setting, script: list[bytes], number: int) -> Play:
    """Play a script; a failure is made short and names the seed that brings it back."""
    try:
        return run(setting, script)
    except Exception as error:
        short = shrink(script, same_failure(run, setting, type(error)))
        print(f"\nsetting {setting.name}: replay with EFFECTSTORE_SEED={number}; the shortest script follows")
        print([command.hex() for command in short])
        run(setting, short)
        raise


def play_seeds(run: Run, setting: Setting, seen: Callable[[Play], None]) -> None:
    """Play the setting's share of seeds."""
    for number in range(SEED, SEED + SEQUENCES - DRAWN):
        seen(attempt(run, setting, script_of(number), number))


def same_failure(run: Run, setting: Setting, kind: type[Exception]) -> Callable[[list[bytes]], bool]:
    """Whether a script still ends with that kind of error."""

    def fails(script: list[bytes]) -> bool:
        try:
            run(setting, script)
        except Exception as error:  # Any error of either side is a failure to make short
            return type(error) is kind
        return False

    return fails


def play_drawn(run: Run, setting: Setting, seen: Callable[[Play], None]) -> None:
    """Play scripts that hypothesis draws; leaving out commands shrinks them much faster than its own way."""

    @seed(SEED)
    @settings(
        max_examples=DRAWN,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn_scripts)
    def drawn(script: list[bytes]) -> None:
        seen(attempt(run, setting, script, SEED))

    drawn()


def count(play: Play) -> None:
    """Add a sequence to what was played."""
    counted["steps"] += play.steps
    counted["sequences"] += 1
    counted["reopened"] += play.reopened > 0
    counted["killed"] += play.steps if play.kills else 0


def nothing(_: Play) -> None:
    """What the model does alone is not counted."""


@each_setting
def test_the_model_keeps_its_invariants_on_seeds(setting: Setting) -> None:
    play_seeds(without_store, setting, nothing)


@each_setting
def test_the_model_keeps_its_invariants_on_drawn_scripts(setting: Setting) -> None:
    play_drawn(without_store, setting, nothing)


@each_setting
def test_the_store_answers_as_the_model_on_seeds(setting: Setting) -> None:
    load_api()
    played.add(("seeds", setting.name))
    play_seeds(with_store, setting, count)


@each_setting
def test_the_store_answers_as_the_model_on_drawn_scripts(setting: Setting) -> None:
    load_api()
    play_drawn(with_store, setting, count)
    played.add(("drawn", setting.name))


def test_enough_was_played() -> None:
    """The budget was spent, every fifth sequence reopened the store, and every hundredth step was a kill at least."""
    load_api()
    if len(played) != 2 * len(SETTINGS):
        pytest.skip("only a part of the sequences was selected")
    print("\n" + ", ".join(f"{number} {name}" for name, number in counted.items()))
    assert counted["steps"] >= STEPS
    assert counted["reopened"] * 5 >= counted["sequences"]
    assert counted["killed"] * 100 >= counted["steps"]
