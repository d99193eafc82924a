"""Commands that only look."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import effectstore
from cli_tools import Cli, Waiting, environment
from effectstore._choices import RECORD_KINDS

WORDS = ["status", "log", "explain ship-v2", "graph", "rollbacks", "approvals", "verify", "alerts", "review", "metrics"]
FORMAT = Path(__file__).parents[2] / "rust" / "core" / "FORMAT.md"
LOOKS = [word.split() for word in WORDS]


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words[0])
def test_looks_fit_a_terminal_and_change_nothing(terminal: Cli, demo_store: Path, words: list[str]) -> None:
    before = {file.name: file.read_bytes() for file in demo_store.iterdir() if file.name.startswith("data")}
    ran = terminal(*words, demo_store, LC_ALL="C")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.strip()
    if words[0] != "explain":
        assert max(len(line) for line in ran.out.splitlines() if str(demo_store) not in line) <= 80
    assert {file.name: file.read_bytes() for file in demo_store.iterdir() if file.name.startswith("data")} == before


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words[0])
def test_every_look_speaks_json(cli: Cli, demo_store: Path, words: list[str]) -> None:
    ran = cli(*words, "--json", EFFECTSTORE_PATH=str(demo_store))
    assert (ran.code, ran.err) == (0, "")
    assert all(isinstance(value, dict) for value in ran.objects)
    if words[0] not in {"log", "rollbacks", "approvals", "alerts", "review"}:
        assert ran.object


def test_status_counts(cli: Cli, demo_store: Path, waiting: Waiting) -> None:
    quiet = cli("status", demo_store, "--json").object
    assert quiet["live_effects"] == 0
    assert quiet["pending_approvals"] == []
    assert quiet["branches"] == {"closed": 1, "doomed": 1, "open": 1}
    busy = cli("status", waiting.path, "--json").object
    assert busy["pending_approvals"] == [waiting.approval]
    assert busy["rollbacks"] == {"awaiting_approval": 1}


def test_status_sees_what_is_live(cli: Cli, tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        branch = store.branch("work")
        first = branch.register("t", inverse=effectstore.Inverse("u"), writes="k")
        first.done(None, durable=True)
        branch.register("t", inverse=effectstore.Inverse("u"), writes="l")
        store.commit(branch)
    found = cli("status", tmp_path / "store", "--json").object
    assert (found["live_effects"], found["unknown_outcomes"], len(found["waiting_fences"])) == (2, 1, 1)


def test_log_goes_in_order_and_in_pieces(cli: Cli, demo_store: Path) -> None:
    every = [record["seq"] for record in cli("log", demo_store, "--json").objects]
    assert every == sorted(set(every))
    assert len(every) > 8
    first = [record["seq"] for record in cli("log", demo_store, "--json", "--limit", 3).objects]
    rest = [record["seq"] for record in cli("log", demo_store, "--json", "--since", first[-1]).objects]
    assert first + rest == every
    kinds = {record["kind"] for record in cli("log", demo_store, "--json").objects}
    kind = min(kinds)
    chosen = cli("log", demo_store, "--json", "--kind", kind).objects
    assert {record["kind"] for record in chosen} == {kind}
    assert len(cli("log", demo_store).out.splitlines()) == len(every)


def test_a_closed_pipe_is_no_error(demo_store: Path) -> None:
    command = f"{sys.executable} -m effectstore.cli log --json '{demo_store}' | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, env=environment(), timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


# A shell's background job ignores interrupts, and so does what it starts: the command is put in front of a person.
IN_FRONT = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("effectstore.cli", run_name="__main__", alter_sys=True)
"""


def test_following_the_log_ends_with_an_interrupt(demo_store: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", IN_FRONT, "log", "--follow", str(demo_store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert b"interrupted" in err


def test_explain_takes_numbers_and_names(cli: Cli, demo_store: Path) -> None:
    effects = cli("graph", demo_store, "--json").object["nodes"]
    told = cli("explain", effects[0]["id"], demo_store)
    assert (told.code, told.err) == (0, "")
    assert "set_pool_size" in told.out
    unknown = cli("explain", 999_999_999, demo_store)
    assert unknown.code == 1
    assert "999999999" in unknown.err
    assert cli("explain", "no-such-branch", demo_store).code == 1


def test_graph_shows_who_rests_on_whom(cli: Cli, demo_store: Path) -> None:
    graph = cli("graph", demo_store, "--json").object
    names = {node["id"]: node["tool"] for node in graph["nodes"]}
    edges = {(names[edge["from"]], names[edge["rests_on"]]) for edge in graph["edges"]}
    assert edges == {("ship", "set_pool_size"), ("send_mail", "ship")}
    states = {node["tool"]: node["state"] for node in graph["nodes"]}
    assert states == {
        "set_pool_size": "doomed",
        "ship": "doomed",
        "send_mail": "doomed",
        "write_changelog": "committed",
    }
    ids = {tool: number for number, tool in names.items()}
    mermaid = cli("graph", demo_store, "--format", "mermaid").out
    assert mermaid.startswith("flowchart BT\n")
    assert f'e{ids["ship"]} -->|"config/pool#95;size"| e{ids["set_pool_size"]}' in mermaid.replace("_", "#95;")
    dot = cli("graph", demo_store, "--format", "dot").out
    assert dot.startswith("digraph effects {\n")
    assert f'e{ids["ship"]} -> e{ids["set_pool_size"]} [label="config/pool_size"];' in dot
    tree = cli("graph", demo_store).out
    assert f"  x {ids['ship']} ship (ship-v2, doomed, undone)" in tree


def test_graph_filters_and_says_what_it_leaves_out(cli: Cli, demo_store: Path) -> None:
    part = cli("graph", demo_store, "--limit", 2, "--json")
    assert len(part.object["nodes"]) == 2
    assert "--since" in part.err
    only = cli("graph", demo_store, "--state", "committed", "--json").object
    assert [node["tool"] for node in only["nodes"]] == ["write_changelog"]
    branch = cli("graph", demo_store, "--branch", "ship-v2", "--json").object
    assert {node["branch"] for node in branch["nodes"]} == {"ship-v2"}


def test_nothing_is_cut_where_the_output_is_no_terminal(cli: Cli, terminal: Cli, tmp_path: Path) -> None:
    reason = "the advice was out of date; " * 20
    with effectstore.open(tmp_path / "store") as store:
        branch = store.branch("work")
        effect = branch.register("t", inverse=effectstore.Inverse("u"), writes="k").done(None)
        branch.abort(reason=reason)
        store.compensate({"u": _broken})
    assert reason.strip() in cli("rollbacks", tmp_path / "store").out
    assert reason.strip() in cli("explain", effect.id, tmp_path / "store").out
    assert "…" not in cli("alerts", tmp_path / "store").out
    assert "…" in terminal("rollbacks", tmp_path / "store").out


def _broken(args: object, step: effectstore.Step) -> None:
    raise effectstore.PermanentError("no")


def test_log_refuses_what_is_no_kind_of_record(cli: Cli, demo_store: Path) -> None:
    refused = cli("log", demo_store, "--kind", "foo")
    assert (refused.code, refused.out) == (2, "")
    assert "registered" in refused.err
    assert cli("log", demo_store, "--kind", "unknown_200").code == 0
    kinds = {record["kind"] for record in cli("log", demo_store, "--json").objects}
    assert kinds <= set(RECORD_KINDS)


def test_the_kinds_of_records_are_those_of_the_format() -> None:
    events = FORMAT.read_text(encoding="utf-8").split("### 4.9 Events")[1].split("\n## ")[0]
    named = re.findall(r"^\| \d+ \| (\w+) \|", events, re.MULTILINE)
    assert {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in named} == set(RECORD_KINDS)


def test_verify_says_nothing_of_what_there_is_not(cli: Cli, demo_store: Path) -> None:
    assert "None" not in cli("verify", demo_store).out


def test_odd_names_cannot_steer_the_terminal(cli: Cli, tmp_path: Path) -> None:
    odd = 'a"b]\x1b[31m\nc\\<d>'
    with effectstore.open(tmp_path / "store") as store:
        store.branch(odd).register(odd, inverse=effectstore.Inverse("u"), writes=odd).done(None)
        store.reconcile(abort=odd, by=odd, reason=odd)
    for words in (["graph"], ["graph", "--format", "dot"], ["graph", "--format", "mermaid"], ["rollbacks"], ["log"]):
        ran = cli(*words, tmp_path / "store")
        assert ran.code == 0
        assert "\x1b" not in ran.out
    dot = cli("graph", tmp_path / "store", "--format", "dot").out
    assert len(re.findall(r'(?<!\\)"', dot)) % 2 == 0


def test_rollbacks_and_approvals_are_listed(cli: Cli, waiting: Waiting) -> None:
    rollback = cli("rollbacks", waiting.path, "--json").object
    assert (rollback["id"], rollback["state"]) == (waiting.rollback, "awaiting_approval")
    approval = cli("approvals", waiting.path, "--json").object
    assert (approval["id"], approval["state"], approval["subject"]) == (waiting.approval, "pending", waiting.rollback)
    assert "wrong customer" in cli("rollbacks", waiting.path).out
    assert cli("rollbacks", waiting.path, "--state", "closed").out == "no rollbacks\n"
    assert cli("approvals", waiting.path, "--state", "denied").out == "no approvals\n"
    assert str(waiting.approval) in cli("approvals", waiting.path, "--state", "pending").out


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words[0])
def test_a_missing_store_is_code_4_and_not_made(cli: Cli, tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "nowhere"
    ran = cli(*words, path)
    assert ran.code == 4
    assert str(path) in ran.err
    assert not path.exists()
    assert cli(*words).code == 2


def test_a_directory_that_is_no_store_is_code_4(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("not a store")
    assert cli("status", tmp_path).code == 4
    assert cli("status", tmp_path / "letter.txt").code == 4
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


def test_mistakes_in_usage_are_code_2(cli: Cli, demo_store: Path) -> None:
    for words in (
        [],
        ["no-such-command"],
        ["log", "--since", "x"],
        ["log", "--limit", "0"],
        ["graph", "--format", "png"],
    ):
        assert cli(*words, EFFECTSTORE_PATH=str(demo_store)).code == 2
    assert cli("--help").code == 0


def test_errors_are_json_where_json_is_asked_for(cli: Cli, tmp_path: Path) -> None:
    ran = cli("status", tmp_path / "nowhere", "--json")
    assert (ran.code, ran.out) == (4, "")
    assert '"error": "missing_store"' in ran.err
