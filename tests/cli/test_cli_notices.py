"""Inboxes on the command line."""

from pathlib import Path

import effectstore
from cli_tools import Cli


def broken(path: Path) -> Path:
    """A store in which a branch broke that two agents have to take note of."""
    with effectstore.open(path) as store:
        store.branch("plan\x1b[2J", agent="planner")
        store.signal_break(
            "plan\x1b[2J", severity="permanent", reason="drift", recoverable=True, upstream=["ops"], ack_within=3600
        )
    return path


def test_an_inbox_lists_what_its_agent_has_to_note(cli: Cli, tmp_path: Path) -> None:
    path = broken(tmp_path / "store")
    mine = cli("inbox", "ops", path)
    assert (mine.code, "permanent" in mine.out, "planner" in mine.out) == (0, True, False)
    assert "\x1b" not in mine.out
    assert cli("inbox", "nobody", path).out.strip() == "no notices"
    everybody = cli("inbox", "*", path)
    assert "planner" in everybody.out
    assert "ops" in everybody.out
    assert cli("inbox", "ops", path, "--json").object["reason"] == "drift"
    assert len(cli("status", path, "--json").object["open_notices"]) == 2


def test_notices_are_acknowledged_in_the_name_of_their_agent(cli: Cli, tmp_path: Path) -> None:
    path = broken(tmp_path / "store")
    assert cli("inbox", "ops", path, "--ack", "--json").object["acknowledged"] is True
    assert cli("inbox", "ops", path).out.strip() == "no notices"
    assert len(cli("status", path, "--json").object["open_notices"]) == 1
    with effectstore.open(path) as store:
        assert [notice.agent for notice in store.inbox("*")] == ["planner"]
