"""Answering approvals; checking and keeping a store."""

import getpass
from pathlib import Path

import effectstore
from cli_tools import Cli, Waiting


def test_approve_is_recorded_with_name_and_reason(cli: Cli, waiting: Waiting) -> None:
    ran = cli("approve", waiting.approval, waiting.path, "--by", "ana", "--reason", "checked", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.object["state"] == "approved"
    with effectstore.open(waiting.path) as store:
        answered = store.approval(waiting.approval)
        assert (answered.state, answered.answered_by, answered.answer_reason) == ("approved", "ana", "checked")
        report = store.compensate({"void_invoice": lambda args, step: None})
        assert report.completed == (waiting.effect,)
        assert report.clean


def test_an_approval_is_answered_once(cli: Cli, waiting: Waiting) -> None:
    assert cli("deny", waiting.approval, waiting.path, "--by", "ana", "--reason", "no").code == 0
    again = cli("approve", waiting.approval, waiting.path, "--by", "ben")
    assert again.code == 1
    assert str(waiting.approval) in again.err
    with effectstore.open(waiting.path) as store:
        assert store.approval(waiting.approval).state == "denied"
        (failure,) = store.compensate({"void_invoice": lambda args, step: None}).failed
        assert failure.kind == "denied"


def test_by_defaults_to_the_login_name(cli: Cli, waiting: Waiting) -> None:
    assert cli("approve", waiting.approval, waiting.path).code == 0
    with effectstore.open(waiting.path) as store:
        assert store.approval(waiting.approval).answered_by == getpass.getuser()


def test_a_denial_needs_a_reason_and_an_approval_must_exist(cli: Cli, waiting: Waiting) -> None:
    assert cli("deny", waiting.approval, waiting.path).code == 2
    assert cli("approve", "seven", waiting.path).code == 2
    unknown = cli("approve", 999_999_999, waiting.path)
    assert unknown.code == 1
    assert "999999999" in unknown.err
    assert cli("approve", waiting.effect, waiting.path).code == 1
    with effectstore.open(waiting.path) as store:
        assert store.approval(waiting.approval).state == "pending"


def test_verify_says_sound(cli: Cli, demo_store: Path) -> None:
    assert cli("verify", demo_store, "--json").object["sound"] is True


def test_verify_finds_damage(cli: Cli, waiting: Waiting) -> None:
    (data,) = [file for file in waiting.path.iterdir() if file.name.startswith("data")]
    content = bytearray(data.read_bytes())
    # The tool's name lies in the registration's record; another name there breaks the hash of the record.
    places = [at for at in range(len(content)) if content.startswith(b"void_invoice", at)]
    assert places
    for at in places:
        content[at] ^= 0x01
    data.write_bytes(bytes(content))
    ran = cli("verify", waiting.path)
    assert ran.code == 4
    assert ran.err


def test_backup_and_export_give_equal_stores(cli: Cli, waiting: Waiting, tmp_path: Path) -> None:
    copy, file, loaded = tmp_path / "copy", tmp_path / "store.cborseq", tmp_path / "loaded"
    assert cli("backup", copy, waiting.path).code == 0
    assert cli("export", file, waiting.path, "--json").object == {"done": "export", "path": str(file)}
    assert cli("import", file, loaded).code == 0
    told = cli("approvals", waiting.path, "--json").object
    for path in (copy, loaded):
        assert cli("verify", path).code == 0
        assert cli("approvals", path, "--json").object == told
        assert [r["seq"] for r in cli("log", path, "--json").objects][:3] == [1, 2, 3]


def test_nothing_that_exists_is_overwritten(cli: Cli, waiting: Waiting, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    assert cli("backup", precious, waiting.path).code == 2
    assert cli("export", precious, waiting.path).code == 2
    assert precious.read_text() == "mine"
    assert cli("import", precious, waiting.path).code == 2
    assert cli("status", waiting.path).code == 0
    assert cli("import", tmp_path / "none", tmp_path / "new").code == 2


def test_a_file_that_is_no_export_is_refused_whole(cli: Cli, tmp_path: Path) -> None:
    letter = tmp_path / "letter"
    letter.write_bytes(b"dear store" * 100)
    ran = cli("import", letter, tmp_path / "new")
    assert ran.code in {1, 4}
    assert ran.err
    assert cli("status", tmp_path / "new").code == 4
