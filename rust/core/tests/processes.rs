//! One store, several processes: each folds what the others wrote, and a hold ends with its process.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};

use effectstore::model::*;
use effectstore::store::{CompensateOptions, Handled, NewBranch, Payloads};
use effectstore::{EffectStore, Options};

const ROLE: &str = "EFFECTSTORE_TEST_ROLE";
const STORE: &str = "EFFECTSTORE_TEST_STORE";

fn open(path: &Path) -> EffectStore {
    EffectStore::open(path, Options::default()).unwrap()
}

/// Registers and reports a write, over what the branch reads.
fn ran(store: &EffectStore, branch: &BranchInfo, key: &str, reads: &[&str]) -> EffectId {
    let mut payloads = Payloads::default();
    let args = payloads.put(b"\xa0".to_vec());
    let mut call =
        Registration::new("set", args).writes(key).inverse(Inverse::call("unset", Some(args)));
    for read in reads {
        call = call.reads(*read);
    }
    let placed = Placed { branch: branch.id, token: branch.token, call };
    let receipt = store.register(vec![placed], payloads, 0).unwrap()[0];
    let (none, token) = (Payloads::default(), receipt.token.unwrap());
    store.done(receipt.effect, token, b"\xf6".to_vec(), None, none, true).unwrap();
    receipt.effect
}

fn claim_spec() -> ClaimSpec {
    ClaimSpec {
        agent: "*".into(),
        tools: None,
        lease_ms: 600_000,
        rollback: None,
        retry: None,
        on_failure: None,
        except: Vec::new(),
    }
}

fn start(role: &str, store: &Path) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_of_these_tests", "--nocapture"])
        .env(ROLE, role)
        .env(STORE, store)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

/// The next line that a child said, without what the test harness says.
fn heard(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the child ended");
        if let Some(said) = line.trim_end().split("said ").nth(1) {
            return said.to_owned();
        }
    }
}

fn say(what: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "said {what}").unwrap();
    out.flush().unwrap();
}

/// Not a test of its own: what the tests below start as another process.
#[test]
fn a_child_of_these_tests() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let store = open(&PathBuf::from(std::env::var(STORE).unwrap()));
    match role.as_str() {
        "write on X" => {
            let branch = store.create_branch(NewBranch::named("child")).unwrap();
            say(ran(&store, &branch, "Y", &["X"]));
        }
        "write a thousand" => {
            let branch = store.create_branch(NewBranch::named("child")).unwrap();
            for number in 0..1000 {
                ran(&store, &branch, &format!("child/{number}"), &[]);
            }
            say("written");
        }
        "claim and stay" => {
            let step = store.claim(&claim_spec(), 0).unwrap().unwrap();
            say(step.attempt);
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        other => panic!("no such role: {other}"),
    }
}

#[test]
fn what_another_process_registered_falls_with_what_it_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = open(&path);
    let branch = store.create_branch(NewBranch::named("parent")).unwrap();
    let first = ran(&store, &branch, "X", &[]);
    let (mut child, mut output) = start("write on X", &path);
    let second = EffectId(heard(&mut output).parse().unwrap());
    child.wait().unwrap();
    assert_eq!(store.effect(second).unwrap().state, EffectState::Live);
    let done = store.abort(Target::Effect(first), branch.token, "wrong", None).unwrap();
    assert_eq!((done.doomed, done.cascaded), (vec![first], vec![second]));
    let mut order = Vec::new();
    let handler = &mut |step: &StepInfo| {
        order.push(step.effect);
        Handled::Completed(None)
    };
    assert!(store.compensate(&CompensateOptions::default(), handler).unwrap().report.clean());
    assert_eq!(order, [second, first]);
    store.verify(None).unwrap();
}

#[test]
fn two_writers_in_turn_share_one_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = open(&path);
    let branch = store.create_branch(NewBranch::named("parent")).unwrap();
    let (mut child, mut output) = start("write a thousand", &path);
    for number in 0..1000 {
        ran(&store, &branch, &format!("parent/{number}"), &[]);
    }
    assert_eq!(heard(&mut output), "written");
    child.wait().unwrap();
    // Memory that followed, and memory that is loaded anew, decide the same.
    let other = store.branch_named("child").unwrap();
    assert_eq!(store.decide(Target::Branch(other.id)).unwrap().closure.len(), 999);
    let fence = store.commit(Target::Branch(other.id), other.token, Escalate::Wait, 0).unwrap();
    assert_eq!((fence.status, fence.committed.len()), (FenceStatus::Committed, 1000));
    assert_eq!(store.verify(None).unwrap().records, 4004);
    drop(store);
    let store = open(&path);
    assert_eq!(store.decide(Target::Branch(branch.id)).unwrap().closure.len(), 999);
}

#[test]
fn a_claim_ends_with_its_process_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = open(&path);
    let branch = store.create_branch(NewBranch::named("parent")).unwrap();
    let effect = ran(&store, &branch, "X", &[]);
    store.abort(Target::Effect(effect), branch.token, "wrong", None).unwrap();
    for attempt in 1..=2 {
        let (mut child, mut output) = start("claim and stay", &path);
        assert_eq!(heard(&mut output), attempt.to_string());
        assert!(store.claim(&claim_spec(), 200).unwrap().is_none(), "its worker lives");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let step = store.claim(&claim_spec(), 5_000).unwrap().expect("its worker is gone");
    assert_eq!((step.effect, step.attempt), (effect, 3));
    // A hold of this process outlives a closed handle: the worker does, too.
    store.close().unwrap();
    drop(store);
    assert!(open(&path).claim(&claim_spec(), 200).unwrap().is_none());
}
