//! Random work, undone in random order, against the rules of order written down naively: sets of
//! what must go before what, closed transitively, computed anew for every look (I13, I15, I18).
#![allow(clippy::unwrap_used)] // A test that meets an error shall stop there.

mod decide_support;

use std::collections::{BTreeMap, BTreeSet};

use decide_support::{Line, Store, plain, write};
use effectstore::model::*;
use effectstore::state::{Effect, Guard, StepStatus};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Act {
    /// Branch, written key, read key, compare-and-set, class.
    Register(usize, Option<usize>, Option<usize>, bool, u8),
    Done(usize),
    NotRun(usize),
    Close(usize),
    See(usize, usize),
    Abort(usize),
    Commit(usize),
    Resume(usize),
    Claim,
    End(usize, u8),
    Retry(usize),
    Resolve(usize),
    Answer(bool),
    AskAgain,
    Wait(u16),
}

const KEYS: [&str; 3] = ["K", "L", "M"];

fn act() -> impl Strategy<Value = Act> {
    let key = || proptest::option::of(0..KEYS.len());
    prop_oneof![
        6 => (0..3_usize, key(), key(), any::<bool>(), 0..12_u8)
            .prop_map(|(b, w, r, cas, c)| Act::Register(b, w, r, cas, c)),
        6 => any::<usize>().prop_map(Act::Done),
        1 => any::<usize>().prop_map(Act::NotRun),
        1 => any::<usize>().prop_map(Act::Close),
        2 => (any::<usize>(), 0..KEYS.len()).prop_map(|(e, k)| Act::See(e, k)),
        2 => any::<usize>().prop_map(Act::Abort),
        1 => any::<usize>().prop_map(Act::Commit),
        3 => (0..3_usize).prop_map(Act::Resume),
        6 => Just(Act::Claim),
        6 => (any::<usize>(), 0..8_u8).prop_map(|(s, end)| Act::End(s, end)),
        1 => any::<usize>().prop_map(Act::Retry),
        1 => any::<usize>().prop_map(Act::Resolve),
        2 => any::<bool>().prop_map(Act::Answer),
        1 => Just(Act::AskAgain),
        1 => (0..40_000_u16).prop_map(Act::Wait),
    ]
}

/// The rules, slowly.
struct Naive<'a> {
    store: &'a Store,
    before: BTreeMap<EffectId, BTreeSet<EffectId>>,
}

fn wrote(effect: &Effect, key: &Key) -> bool {
    !effect.is_deferred() && effect.writes.contains(key)
}

impl<'a> Naive<'a> {
    fn new(store: &'a Store) -> Self {
        let mut naive = Naive { store, before: BTreeMap::new() };
        let open = store.state.rollbacks.values().filter(|rollback| rollback.open);
        let nodes: Vec<EffectId> = open
            .flat_map(|rollback| rollback.members.iter().copied())
            .filter(|id| store.state.effects.contains(*id))
            .collect();
        for node in &nodes {
            let first = nodes.iter().copied().filter(|other| {
                other != node
                    && (store.state.graph.dependencies(other.0).contains(&node.0)
                        || naive.overwrote(*other, *node))
            });
            let first = first.collect();
            naive.before.insert(*node, first);
        }
        loop {
            let mut changed = false;
            for node in &nodes {
                let more: BTreeSet<EffectId> = naive.before[node]
                    .iter()
                    .flat_map(|first| naive.before[first].clone())
                    .collect();
                let ahead = naive.before.get_mut(node).unwrap();
                let size = ahead.len();
                ahead.extend(more);
                changed |= ahead.len() > size;
            }
            if !changed {
                return naive;
            }
        }
    }

    fn effect(&self, id: EffectId) -> &Effect {
        self.store.state.effects.get(id).unwrap()
    }

    fn overwrote(&self, later: EffectId, earlier: EffectId) -> bool {
        let (later, earlier) = (self.effect(later), self.effect(earlier));
        let ran = |effect: &Effect| effect.step.as_ref().is_some_and(|step| !step.is_discarded());
        later.id > earlier.id
            && ran(later)
            && ran(earlier)
            && earlier.writes.iter().any(|key| wrote(later, key) && wrote(earlier, key))
    }

    fn held_by(&self, id: EffectId) -> BTreeSet<EffectId> {
        let mut held = BTreeSet::new();
        for other in self.before[&id].iter().copied().filter(|other| *other != id) {
            let step = self.effect(other).step.as_ref().unwrap();
            let ring = self.before[&other].contains(&id);
            if step.is_finished() || (ring && other < id) {
                continue;
            }
            if !step.is_waived() || self.overwrote(other, id) {
                held.insert(other);
            }
        }
        held
    }

    fn due(&self) -> BTreeSet<EffectId> {
        let pending =
            |id: &EffectId| self.effect(*id).step.as_ref().is_some_and(|step| step.is_pending());
        self.before.keys().copied().filter(pending).collect()
    }

    fn waits_for_live(&self, id: EffectId) -> bool {
        matches!(self.store.state.guard(id), Guard::Live(_))
    }

    fn ready(&self) -> Option<EffectId> {
        self.due().into_iter().rev().find(|id| {
            let effect = self.effect(*id);
            let rested = match effect.step.as_ref().unwrap().status {
                StepStatus::Pending { again_ms } => {
                    again_ms.is_none_or(|again| again <= self.store.now_ms)
                }
                _ => false,
            };
            let approved = self.store.state.rollbacks[&effect.rollback.unwrap()].approved;
            rested && approved && !self.waits_for_live(*id) && self.held_by(*id).is_empty()
        })
    }

    fn blocked(&self) -> BTreeSet<EffectId> {
        let due = self.due();
        let failed = |id: &EffectId| self.effect(*id).step.as_ref().unwrap().is_failed();
        let mut found: BTreeSet<EffectId> =
            due.iter().copied().filter(|id| self.waits_for_live(*id)).collect();
        loop {
            let more: Vec<EffectId> = due
                .iter()
                .copied()
                .filter(|id| !found.contains(id))
                .filter(|id| self.held_by(*id).iter().any(|by| found.contains(by) || failed(by)))
                .collect();
            if more.is_empty() {
                return found;
            }
            found.extend(more);
        }
    }
}

struct Play {
    store: Store,
    lines: Vec<Line>,
    effects: Vec<u64>,
    steps: Vec<decide_support::Claimed>,
}

impl Play {
    fn new(policy: Policy) -> Self {
        let mut store = Store::new(policy);
        let lines = ["a", "b", "c"].map(|name| store.branch(name)).to_vec();
        Play { store, lines, effects: Vec::new(), steps: Vec::new() }
    }

    fn pick(&self, index: usize) -> Option<u64> {
        let count = self.effects.len();
        (count > 0).then(|| self.effects[index % count])
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Register(line, writes, reads, cas, class) => {
                let mut call = writes.map_or_else(|| plain("p"), |key| write(KEYS[key]));
                if let Some(key) = reads {
                    call = call.reads(KEYS[*key]);
                }
                if let Some(undo) = call.inverse.as_mut() {
                    undo.compare_and_set = *cas;
                }
                match class {
                    0 => call.class = Some(Class::Partial),
                    1 => call.inverse = None,
                    _ => {}
                }
                self.effects.extend(self.store.try_register(self.lines[*line], call).ok());
            }
            Act::Done(index) => drop(self.pick(*index).map(|effect| self.store.done(effect))),
            Act::NotRun(index) => drop(self.pick(*index).map(|effect| self.store.not_run(effect))),
            Act::Close(index) => {
                if let Some(effect) = self.pick(*index).map(EffectId) {
                    let close = Command::Close { effect, by: "o".into(), reason: "r".into() };
                    self.store.run(&close).unwrap();
                }
            }
            Act::See(index, key) => {
                if let Some(effect) = self.pick(*index).map(EffectId) {
                    let token = Token { incarnation: 1, number: effect.0 };
                    let keys = vec![Read::of(KEYS[*key])];
                    drop(self.store.run(&Command::ObserveLate { effect, token, keys }));
                }
            }
            Act::Abort(index) => {
                if let Some(effect) = self.pick(*index) {
                    self.store.abort(&[effect]);
                }
            }
            Act::Commit(index) => {
                if let Some(effect) = self.pick(*index)
                    && self.store.state.live_effect(EffectId(effect)).is_some()
                {
                    self.store.commit(&[effect]);
                }
            }
            Act::Resume(line) => {
                let Line { id, token } = self.lines[*line];
                if let Ok(Reply::Branch(info)) =
                    self.store.run(&Command::Resume { branch: id, token })
                {
                    self.lines[*line].token = info.token;
                }
            }
            _ => self.act_on_steps(act),
        }
    }

    fn act_on_steps(&mut self, act: &Act) {
        match act {
            Act::Claim => {
                let expected = Naive::new(&self.store).ready();
                let claimed = self.store.claim();
                assert_eq!(claimed.as_ref().map(|step| EffectId(step.effect)), expected);
                self.steps.extend(claimed);
            }
            Act::End(index, end) if !self.steps.is_empty() => {
                let step = self.steps[index % self.steps.len()].clone();
                let problem = Problem::new("E", "e");
                let end = match end {
                    0 => StepEnd::Failed(problem),
                    1 => StepEnd::Permanent(problem),
                    2 => StepEnd::Interrupted,
                    3 => StepEnd::NeverHappened,
                    _ => StepEnd::Completed(None),
                };
                drop(self.store.end(&step, end));
            }
            Act::Retry(index) | Act::Resolve(index) => {
                let Some(effect) = self.pick(*index).map(EffectId) else { return };
                let known = self.store.state.effects.get(effect);
                let Some(rollback) = known.and_then(|known| known.rollback) else { return };
                let (by, reason) = ("o".to_owned(), "r".to_owned());
                let command = if matches!(act, Act::Retry(_)) {
                    Command::RetryStep { rollback, effect, by, reason }
                } else {
                    Command::ResolveStep { rollback, effect, by, reason, versions: Vec::new() }
                };
                drop(self.store.run(&command));
            }
            Act::Answer(approve) => {
                let pending = self.store.state.approvals.values();
                let pending = pending.map(|known| &known.info);
                let next = pending
                    .filter(|info| info.state == ApprovalState::Pending)
                    .map(|info| info.id)
                    .next();
                if let Some(id) = next {
                    self.store.answer(id, *approve).unwrap();
                }
            }
            Act::AskAgain => {
                let denied: Vec<RollbackId> = self.store.state.rollbacks.keys().copied().collect();
                for rollback in denied {
                    let ask = Ask::Rollback(rollback);
                    let ask = Command::Ask { ask, by: "o".into(), reason: "r".into() };
                    drop(self.store.run(&ask));
                }
            }
            Act::Wait(ms) => self.store.wait(u64::from(*ms)),
            _ => {}
        }
    }

    fn check(&self) {
        let state = &self.store.state;
        let naive = Naive::new(&self.store);
        let expected = naive.blocked();
        let mut blocked = BTreeSet::new();
        for rollback in state.rollbacks.values() {
            let report = self.store.report(rollback.id);
            blocked.extend(report.blocked.iter().map(|blocked| blocked.effect));
            assert!(report.blocked.iter().all(|blocked| !blocked.by.is_empty()));
            assert_eq!(report.clean(), !rollback.open, "{report:?}");
            let held = rollback.members.iter().filter(|id| state.effects.contains(**id));
            assert_eq!(held.count(), rollback.held);
        }
        assert_eq!(blocked, expected);
    }

    /// A person lends a hand until nothing is left: all that ends, ends (I15), and memory is empty
    /// of what is undone (I19).
    fn bring_to_an_end(&mut self) {
        for _ in 0..20 {
            for effect in self.effects.clone() {
                let live = self.store.state.live_effect(EffectId(effect)).is_some();
                if live {
                    self.store.abort(&[effect]);
                }
                self.act(&Act::Answer(true));
                let place = self.effects.iter().position(|known| *known == effect).unwrap();
                self.act(&Act::Close(place));
                self.act(&Act::Resolve(place));
            }
            self.act(&Act::AskAgain);
            self.store.wait(60_000);
            while let Some(step) = self.store.claim() {
                self.store.complete(&step).unwrap();
            }
            self.check();
            if self.store.state.effects.is_empty() {
                break;
            }
        }
        let left: Vec<String> =
            self.store.state.effects.iter().map(|effect| format!("{effect:?}")).collect();
        assert!(left.is_empty(), "{left:#?}");
        assert!(self.store.state.rollbacks.is_empty() && self.store.state.approvals.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn claims_and_reports_follow_the_naive_rules(
        acts in proptest::collection::vec(act(), 1..120),
        goes_on: bool,
    ) {
        let on_failure = if goes_on { OnFailure::Continue } else { OnFailure::Halt };
        let retry = Retry { max_attempts: 2, ..Retry::default() };
        let policy = Policy {
            on_failure,
            retry,
            require_inverse: false,
            auto_keys: 2,
            ..Policy::default()
        };
        let mut play = Play::new(policy);
        for act in &acts {
            play.act(act);
            play.check();
        }
        play.bring_to_an_end();
    }
}
