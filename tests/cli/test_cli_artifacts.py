"""Commands that show artifacts and the runs of their compensations."""

from pathlib import Path

import pytest

import effectstore
from cli_tools import Cli
from effectstore import ArtifactSpec


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[Path, list[int]]:
    """A store with a draft, a compensated failure, and one that calls for a person."""
    path = tmp_path / "store"
    made = []
    with effectstore.open(path) as store:
        for name in ("draft", "undone", "alarm"):
            fix = ArtifactSpec("script", name, content=b"zz-secret")
            undo = ArtifactSpec("script", f"undo-{name}", content=b"drop")
            pair = store.artifacts.create(fix, undo, by="ana")
            made.append(pair.id)
            if name == "undone":
                store.artifacts.submit(pair, by="ana")
                store.artifacts.approve(pair, by="ben", reason="read both")
                store.artifacts.promote(pair, by="ben")
            if name != "draft":
                store.artifacts.fail(pair, by="runner", reason="exit code 1", run_id="run-7")
        store.compensate({"script": lambda args, step: None}, agent="operator")
    return path, made


def test_artifacts_are_listed_and_filtered(cli: Cli, terminal: Cli, pairs: tuple[Path, list[int]]) -> None:
    path, made = pairs
    ran = cli("artifacts", path)
    assert (ran.code, ran.err) == (0, "")
    assert max(len(line) for line in terminal("artifacts", path).out.splitlines()) <= 80
    assert len(ran.out.splitlines()) == 4
    listed = cli("artifacts", path, "--json").objects
    assert [one["primary"]["id"] for one in listed] == made
    assert [one["primary"]["state"] for one in listed] == ["draft", "failed_compensated", "failed_uncompensated"]
    only = cli("artifacts", path, "--state", "draft", "--json").objects
    assert [one["primary"]["id"] for one in only] == made[:1]
    assert cli("artifacts", path, "--state", "executing").out == "no artifacts\n"
    assert cli("artifacts", path, "--state", "no-such").code == 2


def test_one_artifact_is_shown_with_its_review_and_its_run(cli: Cli, pairs: tuple[Path, list[int]]) -> None:
    path, made = pairs
    for found in (made[1], made[1] + 1):
        ran = cli("artifact", found, path)
        assert (ran.code, ran.err) == (0, "")
        for text in ("failed_compensated", "exit code 1", "run-7", "operator", "approved by ben", "read both"):
            assert text in ran.out, text
    told = cli("artifact", made[1], path, "--json").object
    assert told["run"]["completed"] is True
    assert "zz-secret" not in str(told)
    assert "due" not in cli("artifact", made[2], path).out


def test_an_artifact_that_is_not_there_is_code_1(cli: Cli, pairs: tuple[Path, list[int]]) -> None:
    path, _ = pairs
    for missing in (1, 999):
        ran = cli("artifact", missing, path)
        assert (ran.code, ran.out) == (1, "")
        assert str(missing) in ran.err
    assert cli("artifact", "seven", path).code == 2
    assert cli("artifacts", path.parent / "nowhere").code == 4


def test_a_person_submits_approves_and_promotes_a_pair(cli: Cli, pairs: tuple[Path, list[int]]) -> None:
    path, made = pairs
    draft = made[0]
    for verb, state in [("submit", "in_review"), ("approve", "approved"), ("promote", "promoted")]:
        reason = ["--reason", "read both"] if verb == "approve" else []
        told = cli("artifact", verb, draft, path, "--by", "ben", *reason, "--json")
        assert (told.code, told.err) == (0, "")
        assert told.object["primary"]["state"] == state
        assert told.object["moves"][-1]["by"] == "ben"
    assert "read both" in cli("artifact", draft, path).out
    # Either artifact of a pair will do.
    failed = cli("artifact", "fail", draft + 1, path, "--by", "runner", "--reason", "exit code 3", "--run-id", "r9")
    assert (failed.code, "exit code 3" in failed.out, "r9" in failed.out) == (0, True, True)


def test_verbs_for_a_pair_are_refused_in_words(cli: Cli, pairs: tuple[Path, list[int]]) -> None:
    path, made = pairs
    wrong_state = cli("artifact", "promote", made[0], path, "--by", "ben")
    assert (wrong_state.code, str(made[0]) in wrong_state.err) == (1, True)
    for words in (
        ["submit"],
        ["submit", "one", path],
        ["praise", made[0], path],
        ["reject", made[0], path],
        ["submit", made[0], path, "--reason", "why not"],
        ["approve", made[0], path, "--run-id", "r9"],
        [made[0], path, "--by", "ben"],
        ["submit", made[0], path, "more"],
    ):
        ran = cli("artifact", *words)
        assert ran.code == 2, ran.out + ran.err
    assert cli("artifact", made[0], path, "--json").object["primary"]["state"] == "draft"
