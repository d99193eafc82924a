"""Where the traces lie: our own beside the tests, the recorded ones in the shared folder beside the project."""

from pathlib import Path

import pytest

from effectstore.play import Call, read_trace

HERE = Path(__file__).parent
RECORDED = HERE.parents[2] / "shared" / "traces" / "bfcl-multi-turn.jsonl"


@pytest.fixture(scope="session")
def own_runs() -> dict[str, list[Call]]:
    """The runs of our own small trace."""
    return read_trace(HERE / "own.jsonl")


@pytest.fixture(scope="session")
def recorded_runs() -> dict[str, list[Call]]:
    """The recorded runs; without the shared folder the test is skipped."""
    if not RECORDED.is_file():
        pytest.skip("the recorded traces are not there: ../shared/traces/bfcl-multi-turn.jsonl")
    return read_trace(RECORDED)
