"""Random command sequences, played on the store through its public API and on the reference model beside it.

`EFFECTSTORE_SEED` replays one seed, `EFFECTSTORE_MODEL_STEPS` sets the number of steps (default 20,000).
A failure prints the seed, the story of the shortest failing sequence and its commands.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

from .invariants import Watch
from .peer import StorePeer
from .play import Play
from .script import COMMAND_BYTES, SETTINGS, Setting

SEED = int(os.environ.get("EFFECTSTORE_SEED", "20261130"))
STEPS = int(os.environ.get("EFFECTSTORE_MODEL_STEPS", "20000"))
COMMANDS = 64
SEQUENCES = max(1, STEPS // COMMANDS // len(SETTINGS))
commands = st.lists(
    st.binary(min_size=COMMAND_BYTES, max_size=COMMAND_BYTES), min_size=COMMANDS, max_size=COMMANDS + 16
)
counted = {"steps": 0, "sequences": 0, "reopened": 0, "alone": 0}
played: set[str] = set()


def load_api() -> Any:
    """The package with its extension, or a reason to skip."""
    try:
        api = importlib.import_module("effectstore")
    except ImportError as error:
        pytest.skip(f"the extension is not built: {error}")
    if not hasattr(api, "open"):
        pytest.skip("the extension is not built: effectstore has no open()")
    return api


def tell(play: Play, script: list[bytes]) -> None:
    """What hypothesis prints for the shortest failing sequence."""
    note(f"setting {play.setting.name}, replay with EFFECTSTORE_SEED={SEED}")
    note("\n".join(play.story))
    note(f"commands: {[c.hex() for c in script]}")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_the_model_keeps_its_invariants(setting: Setting) -> None:
    """The oracle itself: every invariant after every step, without a store."""

    @seed(SEED)
    @settings(max_examples=SEQUENCES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(commands)
    def run(script: list[bytes]) -> None:
        play, watch = Play(setting), Watch()
        tell(play, script)
        for command in script:
            play.play(command)
            watch.check(play.model)
        play.finish()
        watch.check(play.model)
        counted["alone"] += play.steps

    run()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_the_store_answers_as_the_model(setting: Setting) -> None:
    """Same commands, same answers, same state after every step."""
    api = load_api()

    @seed(SEED)
    @settings(
        max_examples=SEQUENCES,
        deadline=None,
        database=None,
        print_blob=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(commands)
    def run(script: list[bytes]) -> None:
        directory = Path(tempfile.mkdtemp(prefix="effectstore-model-"))
        peer = StorePeer(api, directory / "store")
        play = Play(setting, peer)
        try:
            sequence(play, script)
        except BaseException:
            tell(play, script)
            raise
        finally:
            peer.close_quietly()
            shutil.rmtree(directory, ignore_errors=True)

    def sequence(play: Play, script: list[bytes]) -> None:
        for place, command in enumerate(script):
            play.play(command)
            # The first of five sequences is reopened in its middle, whatever its commands say.
            if place == COMMANDS // 2 and counted["sequences"] % 5 == 0:
                play.reopen()
        play.finish()
        if play.peer is not None:
            play.peer.finish()
        counted["steps"] += play.steps
        counted["sequences"] += 1
        counted["reopened"] += play.reopened > 0

    run()
    played.add(setting.name)


def test_enough_was_played() -> None:
    """The budget of steps was spent, and at least every fifth sequence reopened the store."""
    load_api()
    if played != {s.name for s in SETTINGS}:
        pytest.skip("only a part of the sequences was selected")
    print(f"\n{counted['steps']} steps in {counted['sequences']} sequences, {counted['reopened']} reopened")
    assert counted["steps"] >= STEPS
    assert counted["reopened"] * 5 >= counted["sequences"]
