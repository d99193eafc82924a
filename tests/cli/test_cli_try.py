"""`demo` and `run`."""

import json
import re
from pathlib import Path

import pytest

from cli_tools import OWN_TRACE, Cli

SMALL_TRACE = OWN_TRACE.parents[3] / "shared" / "traces" / "bfcl-small.jsonl"


def test_demo_tells_both_stories_and_leaves_its_store(cli: Cli, terminal: Cli, tmp_path: Path) -> None:
    path = tmp_path / "demo store"
    ran = terminal("demo", "--store", path)
    assert (ran.code, ran.err) == (0, "")
    storm, fence = ran.out.split("2. With the fence")
    assert re.search(r"pool size +10\n +release +v2, built for a pool of 50", storm)
    assert re.search(r"pool size +10\n +release +v1, built for a pool of 10", fence)
    assert max(len(line) for line in ran.out.splitlines() if str(path) not in line) <= 80
    assert f"'{path}'" in ran.out
    for command in re.findall(r"^    effectstore (.*)$", ran.out, re.MULTILINE):
        assert cli(*command.split(), EFFECTSTORE_PATH=str(path)).code == 0


def test_demo_for_programs(cli: Cli, tmp_path: Path) -> None:
    told = cli("demo", "--store", tmp_path / "store", "--json").object
    assert (told["sound_without_fence"], told["sound_with_fence"]) == (False, True)
    assert (told["mails_without_fence"], told["mails_with_fence"]) == (1, 0)
    assert told["clean"] is True
    assert sorted(told["undone"], reverse=True) == told["undone"]
    assert set(told["undone"]) < set(told["doomed"])


def test_demo_refuses_a_directory_in_use(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("mine")
    assert cli("demo", "--store", tmp_path).code == 2
    assert [file.name for file in tmp_path.iterdir()] == ["letter"]


def test_run_without_a_store_names_the_one_it_makes(cli: Cli, tmp_path: Path) -> None:
    ran = cli("run", OWN_TRACE, "--run", "garden", "--abort", "t0", TMPDIR=str(tmp_path))
    assert ran.code == 0
    (made,) = tmp_path.iterdir()
    assert f"store      {made}" in ran.out.replace("\n           ", " ")
    assert cli("status", made).code == 0


def test_run_shows_a_conflict_and_is_not_clean(cli: Cli, tmp_path: Path) -> None:
    words = ["run", OWN_TRACE, "--run", "kitchen", "--abort", "t0"]
    ran = cli(*words, "--store", tmp_path / "a")
    assert (ran.code, ran.err) == (1, "")
    assert "rests on t0, t1" in ran.out
    assert "conflict" in ran.out
    told = cli(*words, "--store", tmp_path / "b", "--json")
    assert told.code == 1
    assert len(told.object["conflicts"]) == 1
    assert told.object["exempt"] == ["menu"]
    assert told.object["proved"] is True


def test_run_waits_for_an_undecided_overwriter(cli: Cli, tmp_path: Path) -> None:
    words = ["run", OWN_TRACE, "--run", "kitchen", "--abort", "t0", "--commit", "none"]
    ran = cli(*words, "--store", tmp_path / "store", "--json")
    assert ran.code == 3
    assert len(ran.object["waiting"]) == 1


def test_run_plays_all_runs_and_again_in_the_same_store(cli: Cli, terminal: Cli, tmp_path: Path) -> None:
    for _ in range(2):
        told = cli("run", OWN_TRACE, "--abort", "t1", "--store", tmp_path / "store", "--json")
        assert told.code == 0
        assert [result["run"] for result in told.objects] == ["kitchen", "garden"]
        assert all(result["proved"] and result["clean"] for result in told.objects)
    people = terminal("run", OWN_TRACE, "--abort", "t1", "--store", tmp_path / "other")
    assert "2 runs, 9 effects; 2 worlds proved, 0 runs with a conflict" in people.out
    assert max(len(line) for line in people.out.splitlines() if not line.startswith("store")) <= 80


def test_the_fields_of_a_trace_are_told_by_help_and_readme(cli: Cli) -> None:
    fields = json.loads(OWN_TRACE.read_text(encoding="utf-8").splitlines()[0])
    told = cli("run", "--help").out
    readme = (OWN_TRACE.parents[2] / "README.md").read_text(encoding="utf-8")
    assert [field for field in fields if field not in told] == []
    assert [field for field in fields if f"`{field}`" not in readme] == []


def test_run_commits_named_branches_with_what_they_rest_on(cli: Cli, tmp_path: Path) -> None:
    words = ["run", OWN_TRACE, "--run", "kitchen", "--abort", "none", "--commit", "t1"]
    told = cli(*words, "--store", tmp_path / "store", "--json").object
    assert len(told["committed"]) == 2


def test_a_seed_gives_the_same_play(cli: Cli, tmp_path: Path) -> None:
    def play(name: str, seed: int) -> object:
        words = ["run", OWN_TRACE, "--abort", "random", "--seed", seed, "--interleave", seed, "--blind", seed]
        told = cli(*words, "--store", tmp_path / name, "--json")
        assert told.code in {0, 1}
        assert all(result["proved"] for result in told.objects)
        return [{**result, "store": ""} for result in told.objects]

    assert play("a", 7) == play("b", 7)
    assert play("c", 7) != play("d", 8)


@pytest.mark.traces
def test_run_plays_recorded_runs(cli: Cli, tmp_path: Path) -> None:
    if not SMALL_TRACE.is_file():
        pytest.skip("the recorded traces are not there: ../shared/traces/bfcl-small.jsonl")
    told = cli("run", SMALL_TRACE, "--abort", "random", "--seed", 3, "--store", tmp_path / "store", "--json")
    assert told.code in {0, 1}
    assert len(told.objects) == 5
    assert all(result["proved"] for result in told.objects)


def test_mistakes_are_code_2_and_store_nothing(cli: Cli, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(OWN_TRACE.read_text() + '{"run": 1}\n')
    store = tmp_path / "store"
    for words, said in (
        ([tmp_path / "none.jsonl"], "No such file"),
        ([bad], f"{bad}:10: "),
        ([OWN_TRACE, "--run", "nope"], "kitchen"),
        ([OWN_TRACE, "--abort", "t9"], "t9"),
        ([OWN_TRACE, "--abort", "t0", "--commit", "t0"], "t0"),
        ([OWN_TRACE, "--abort", "random", "t0"], "random"),
        ([OWN_TRACE, "--commit", "t9"], "t9"),
        ([OWN_TRACE, "--seed", "-1"], "--seed"),
    ):
        ran = cli("run", *words, "--store", store)
        assert ran.code == 2, words
        assert said in ran.err.replace("\n", "")
    assert not store.exists()
    error = json.loads(cli("run", bad, "--json", "--store", store).err)
    assert error["error"] == "usage"
