"""Plans, alerts, reviews and metrics; what a person does about steps, and compensate from the command line."""

from pathlib import Path

import pytest

import effectstore
from cli_tools import Cli, Waiting

HANDLERS = """
from pathlib import Path

def void_invoice(args, step):
    Path("undone").write_text(str(args["number"]))

def broken(args, step):
    raise effectstore.PermanentError("the ledger is closed")

import effectstore
handlers = {"void_invoice": void_invoice}
failing = {"void_invoice": broken}
nothing = 7

def made():
    return handlers
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "undo_tools.py").write_text(HANDLERS)
    (tmp_path / "bad_tools.py").write_text("raise RuntimeError('no configuration')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_plan_shows_impact_and_steps_and_waits(cli: Cli, waiting: Waiting) -> None:
    ran = cli("plan", waiting.rollback, waiting.path, "--json")
    assert ran.code == 3
    assert (ran.object["state"], ran.object["approvals"]) == ("awaiting_approval", [waiting.approval])
    assert (ran.object["impact"]["keys"], ran.object["impact"]["reversibility"]) == (["invoices/7"], "partial")
    assert [(step["effect"], step["tool"]) for step in ran.object["steps"]] == [(waiting.effect, "void_invoice")]
    told = cli("plan", waiting.rollback, waiting.path).out
    for word in ("void_invoice", "the number stays used", "clerk", "wrong customer"):
        assert word in told
    assert cli("plan", 999_999_999, waiting.path).code == 1


def test_approve_compensate_and_review(cli: Cli, waiting: Waiting, module: Path) -> None:
    blocked = cli("compensate", waiting.path, "--handlers", "undo_tools", "--json")
    assert (blocked.code, blocked.object["approvals"]) == (3, [waiting.approval])
    assert cli("approve", waiting.approval, waiting.path, "--by", "ana").code == 0
    ran = cli("compensate", waiting.path, "--handlers", "undo_tools:made")
    assert (ran.code, ran.err, (module / "undone").read_text()) == (0, "", "7")
    assert "clean" in ran.out
    assert cli("plan", waiting.rollback, waiting.path).code == 0
    assert [owed["id"] for owed in cli("review", waiting.path, "--json").objects] == [waiting.rollback]
    cause = cli("root-cause", waiting.rollback, "data", waiting.path, "--note", "old address", "--by", "ana", "--json")
    assert (cause.code, cause.object["state"]) == (0, "in_review")
    assert "remedy" in cli("review", waiting.path).out
    closed = cli("root-cause", waiting.rollback, "--waive", "one of a kind", EFFECTSTORE_PATH=str(waiting.path))
    assert (closed.code, closed.out) == (0, f"rollback {waiting.rollback}: remedy waived; closed\n")
    assert "nothing is owed" in cli("review", waiting.path).out
    assert cli("root-cause", waiting.rollback, "data", waiting.path, "--note", "again").code == 1


def test_a_failed_step_is_retried_or_resolved_by_a_person(cli: Cli, waiting: Waiting, module: Path) -> None:
    cli("approve", waiting.approval, waiting.path)
    failed = cli("compensate", waiting.path, "--handlers", "undo_tools:failing", "--json")
    assert (failed.code, failed.object["failed"][0]["kind"]) == (1, "permanent")
    assert failed.object["failed"][0]["message"] == "the ledger is closed"
    (alert,) = cli("alerts", waiting.path, "--json").objects
    assert alert["severity"] == "critical"
    assert str(waiting.effect) in cli("alerts", waiting.path).out
    assert cli("ack", alert["id"], waiting.path, "--by", "ana").code == 0
    assert cli("alerts", waiting.path).out == "no alerts\n"
    assert "ana" in cli("alerts", waiting.path, "--all").out
    assert cli("retry", waiting.effect, waiting.path, "--reason", "it is open again").code == 0
    assert cli("retry", waiting.effect, waiting.path, "--reason", "twice").code == 1
    assert cli("compensate", waiting.path, "--handlers", "undo_tools:failing").code == 1
    done = cli("resolve", waiting.effect, waiting.path, "--by", "ana", "--reason", "voided in the ledger", "--json")
    assert (done.code, done.object["report"]["clean"]) == (0, True)


def test_a_failure_says_what_a_person_can_do(cli: Cli, waiting: Waiting, module: Path) -> None:
    """The cause of a blocked rollback changes no state, so the answer says that it was taken."""
    cli("approve", waiting.approval, waiting.path)
    failed = cli("compensate", waiting.path, "--handlers", "undo_tools:failing").out
    assert f"effectstore retry {waiting.effect}" in failed
    assert f"effectstore resolve {waiting.effect}" in failed
    cause = cli("root-cause", waiting.rollback, "data", waiting.path, "--note", "old address", "--by", "ana")
    assert (cause.code, "root cause data recorded" in cause.out) == (0, True)


def test_a_wrong_kind_of_cause_is_named(cli: Cli, waiting: Waiting) -> None:
    ran = cli("root-cause", waiting.rollback, "prompts", waiting.path, "--note", "x")
    assert "'prompts' is no kind of cause" in ran.err
    assert "prompt, data" in ran.err


def test_effects_of_a_report_are_listed_by_number(cli: Cli, tmp_path: Path, module: Path) -> None:
    path = tmp_path / "many"
    with effectstore.open(path) as store:
        branch = store.branch("A")
        made = [
            branch.register("t", {}, inverse=effectstore.Inverse("void_invoice", {"number": 1})).done(None)
            for _ in range(10)
        ]
        branch.abort(reason="wrong")
    assert made[-1].id > 9 > made[0].id
    told = cli("compensate", path, "--handlers", "undo_tools").out
    shown = [int(line.split()[0]) for line in told.splitlines() if line[:1].isdigit()]
    assert shown == [effect.id for effect in made]


def test_a_manual_step_is_confirmed_by_resolve(cli: Cli, tmp_path: Path, module: Path) -> None:
    path = tmp_path / "manual"
    with effectstore.open(path) as store:
        branch = store.branch("A", agent="clerk")
        undo = effectstore.Inverse.manual("call the customer")
        effect = branch.register("promise", {}, writes="P", inverse=undo).done(None)
        branch.abort(reason="contradicted")
    waits = cli("compensate", path, "--handlers", "undo_tools")
    assert waits.code == 3
    assert "by hand" in cli("plan", 5, path).out or "by hand" in "".join(
        cli("plan", rollback["id"], path).out for rollback in cli("rollbacks", path, "--json").objects
    )
    assert cli("resolve", effect.id, path, "--by", "ana", "--reason", "called").code == 0
    assert cli("rollbacks", path, "--json").object["report"]["clean"] is True


def test_close_settles_what_can_never_report(cli: Cli, tmp_path: Path, module: Path) -> None:
    path = tmp_path / "gone"
    with effectstore.open(path) as store:
        branch = store.branch("A", agent="clerk")
        effect = branch.register("void", {}, inverse=effectstore.Inverse("void_invoice", {"number": 1}))
        branch.abort(reason="contradicted")
    assert cli("compensate", path, "--handlers", "undo_tools", "--json").object["unsettled"] == [effect.id]
    assert cli("close", effect.id, path).code == 2, "it needs a reason"
    assert cli("close", effect.id, path, "--reason", "the machine is gone").code == 0
    assert cli("rollbacks", path, "--json").object["report"]["clean"] is True


def test_metrics_in_each_form(cli: Cli, waiting: Waiting) -> None:
    measured = cli("metrics", waiting.path, "--json").object
    assert (measured["storms"]["doomed"], measured["rollbacks"]["awaiting_approval"]) == (1, 1)
    assert "commit efficiency" in cli("metrics", waiting.path).out
    text = cli("metrics", waiting.path, "--prometheus").out
    assert "effectstore_storms_doomed 1" in text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0 for line in lines)
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "each measure is declared once"
    assert {line.split("{")[0].split(" ")[0] for line in lines} == set(names)


@pytest.mark.parametrize(
    "words",
    [
        ["compensate", "STORE"],
        ["compensate", "STORE", "--handlers", "no_such_module"],
        ["compensate", "STORE", "--handlers", "bad_tools"],
        ["compensate", "STORE", "--handlers", "undo_tools:nothing"],
        ["compensate", "STORE", "--handlers", "undo_tools:missing"],
        ["root-cause", "1", "STORE"],
        ["root-cause", "1", "data", "STORE"],
        ["root-cause", "1", "weather", "STORE", "--note", "rain"],
        ["root-cause", "1", "STORE", "--note", "no kind"],
        ["root-cause", "1", "prompts", "STORE"],
        ["root-cause", "1", "prompts"],
        ["ack", "seven", "STORE"],
        ["resolve", "1", "STORE"],
        ["retry", "1", "STORE"],
        ["plan", "STORE"],
    ],
    ids=" ".join,
)
def test_a_users_mistake_is_usage(cli: Cli, waiting: Waiting, module: Path, words: list[str]) -> None:
    ran = cli(*(str(waiting.path) if word == "STORE" else word for word in words))
    assert ran.code == 2, ran.err
    assert ran.err


@pytest.mark.parametrize("verb", ["plan", "ack", "resolve", "retry", "close", "root-cause"])
def test_what_is_not_there_is_refused_and_a_missing_store_is_named(
    cli: Cli, waiting: Waiting, tmp_path: Path, verb: str
) -> None:
    words = {"resolve": ["--reason", "x"], "retry": ["--reason", "x"], "close": ["--reason", "x"]}.get(verb, [])
    category = ["data"] if verb == "root-cause" else []
    words += ["--note", "x"] if verb == "root-cause" else []
    ran = cli(verb, 999_999_999, *category, waiting.path, *words)
    assert ran.code == 1
    assert "999999999" in ran.err
    missing = cli(verb, 1, *category, tmp_path / "nowhere", *words)
    assert missing.code == 4
    assert "nowhere" in missing.err
    assert not (tmp_path / "nowhere").exists()
