//! The main path through the store on both storages.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use effectstore::model::*;
use effectstore::store::{CompensateOptions, Handled, NewBranch, Payloads};
use effectstore::{EffectStore, Options};

fn stores() -> Vec<(tempfile::TempDir, EffectStore)> {
    let dir = tempfile::tempdir().unwrap();
    let lmdb = EffectStore::open(dir.path().join("s"), Options::default()).unwrap();
    let other = tempfile::tempdir().unwrap();
    vec![(dir, lmdb), (other, EffectStore::in_memory(Options::default()).unwrap())]
}

fn write(store: &EffectStore, branch: &BranchInfo, key: &str, reads: &[&str]) -> (EffectId, Token) {
    let mut payloads = Payloads::default();
    let args = payloads.put(b"\xa0".to_vec());
    let mut call =
        Registration::new("set", args).writes(key).inverse(Inverse::call("unset", Some(args)));
    for read in reads {
        call = call.reads(*read);
    }
    let placed = Placed { branch: branch.id, token: branch.token, call };
    let receipt = store.register(vec![placed], payloads, 0).unwrap()[0];
    (receipt.effect, receipt.token.unwrap())
}

fn done(store: &EffectStore, effect: (EffectId, Token)) {
    store.done(effect.0, effect.1, b"\xf6".to_vec(), None, Payloads::default(), true).unwrap();
}

#[test]
fn t1_a_rollback_takes_what_rested_on_it_along_and_a_fence_takes_all_or_nothing() {
    for (_dir, store) in stores() {
        let b = store.create_branch(NewBranch::named("B")).unwrap();
        let c = store.create_branch(NewBranch::named("C")).unwrap();
        let write_x = write(&store, &b, "X", &[]);
        done(&store, write_x);
        let deploy = write(&store, &c, "D", &["X"]);
        done(&store, deploy);
        let fence = store.commit(Target::Branch(c.id), c.token, Escalate::Wait, 0).unwrap();
        assert_eq!(fence.status, FenceStatus::Waiting);
        let done = store.abort(Target::Branch(b.id), b.token, "A contradicts B", None).unwrap();
        assert_eq!((done.doomed, done.cascaded), (vec![write_x.0], vec![deploy.0]));
        let mut order = Vec::new();
        let report = store
            .compensate(&CompensateOptions::default(), &mut |step| {
                order.push(step.effect);
                Handled::Completed(None)
            })
            .unwrap();
        assert_eq!(order, vec![deploy.0, write_x.0]);
        assert!(report.report.clean(), "{report:?}");
        assert_eq!(store.fence(fence.id.unwrap()).unwrap().status, FenceStatus::Aborted);
        let verified = store.verify(None).unwrap();
        assert!(verified.records > 8);
    }
}

#[test]
fn i4_a_closure_is_committed_whole_once_its_last_blocker_is_gone() {
    for (_dir, store) in stores() {
        let b = store.create_branch(NewBranch::named("B")).unwrap();
        let c = store.create_branch(NewBranch::named("C")).unwrap();
        let first = write(&store, &b, "X", &[]);
        done(&store, first);
        let second = write(&store, &c, "D", &["X"]);
        done(&store, second);
        let fence = store.commit(Target::Branch(c.id), c.token, Escalate::Wait, 0).unwrap();
        assert_eq!(fence.status, FenceStatus::Waiting);
        store.seal(b.id, b.token).unwrap();
        let fence = store.fence(fence.id.unwrap()).unwrap();
        assert_eq!(fence.status, FenceStatus::Committed);
        assert_eq!(fence.committed, vec![first.0, second.0]);
        assert_eq!(store.effect(second.0).unwrap().state, EffectState::Committed);
        store.verify(None).unwrap();
    }
}
