//! The store's side of a sequence: every verb through the public API, every answer held against the
//! model's.

use std::collections::{BTreeMap, BTreeSet};

use effectstore::model as real;
use effectstore::model::{
    BranchId, EffectId, Escalate, FenceId, Follows, OnConflict, Placed, Problem, Read, RollbackId,
    StepEnd, StepHold, Target, Token,
};
use effectstore::store::{CompensateOptions, Handled, NewBranch, Payloads};
use effectstore::{EffectStore, Error, Options};

use super::branches::NewLine;
use super::dice::UNKNOWN_ID;
use super::effects::{Behind, Call, Item, Registered};
use super::fence::{Decision, Kind, Ref, Settled, Sides, Why};
use super::play::Handle;
use super::rollback::{Claimed, Failing};
use super::world::*;

/// One store under test, with what its callers hold.
pub struct Peer {
    pub store: EffectStore,
    pub options: Options,
    pub path: Option<std::path::PathBuf>,
    ids: BTreeMap<Id, EffectId>,
    back: BTreeMap<EffectId, Id>,
    lines: BTreeMap<Name, BranchId>,
    tokens: BTreeMap<(Name, u64), Token>,
    effect_tokens: BTreeMap<(Id, u64), Token>,
    brackets: BTreeMap<(Name, u64), u64>,
    fences: BTreeMap<Id, FenceId>,
    rollbacks: BTreeMap<Id, RollbackId>,
    steps: BTreeMap<Claimed, StepHold>,
    step_keys: BTreeMap<(Id, u32), String>,
}

/// The code and the item of a refusal; any other error ends the test.
fn heard<T>(answer: Result<T, Error>) -> Result<T, (&'static str, Option<usize>)> {
    answer.map_err(|error| match error {
        Error::Refused { refusal, index } => (refusal.code(), index),
        other => panic!("the store is unusable: {other}"),
    })
}

/// Both refuse with one code, or both answer.
fn agree<T, U: std::fmt::Debug>(
    verb: &str,
    got: Result<T, Error>,
    wanted: &Ruling<U>,
) -> Option<T> {
    match (heard(got), wanted) {
        (Ok(got), Ok(_)) => Some(got),
        (Err((code, index)), Err(refused)) => {
            assert_eq!(code, refused.code, "{verb}: another refusal than the model's");
            if refused.index.is_some() {
                assert_eq!(index, refused.index, "{verb}: another item is refused");
            }
            None
        }
        (Ok(_), Err(refused)) => panic!("{verb}: answered, the model refuses: {}", refused.code),
        (Err((code, _)), Ok(value)) => {
            panic!("{verb}: refused ({code}), the model answers {value:?}")
        }
    }
}

impl Peer {
    pub fn new(store: EffectStore, options: Options, path: Option<std::path::PathBuf>) -> Self {
        Peer {
            store,
            options,
            path,
            ids: BTreeMap::new(),
            back: BTreeMap::new(),
            lines: BTreeMap::new(),
            tokens: BTreeMap::new(),
            effect_tokens: BTreeMap::new(),
            brackets: BTreeMap::new(),
            fences: BTreeMap::new(),
            rollbacks: BTreeMap::new(),
            steps: BTreeMap::new(),
            step_keys: BTreeMap::new(),
        }
    }

    pub fn id(&self, effect: Id) -> EffectId {
        if effect == UNKNOWN_ID { EffectId(UNKNOWN_ID) } else { self.ids[&effect] }
    }

    fn here(&self, effects: &[EffectId]) -> Ids {
        effects.iter().map(|e| self.back[e]).collect()
    }

    fn target(&self, target: Ref) -> Target {
        match target {
            Ref::Branch(name) => Target::Branch(self.lines[&name]),
            Ref::Effect(id) => Target::Effect(self.id(id)),
        }
    }

    fn held(&self, handle: &Handle) -> (BranchId, Token) {
        (self.lines[&handle.name], self.tokens[&(handle.name, handle.token)])
    }

    fn reads(&self, reads: &[(Key, Option<Id>)]) -> Vec<Read> {
        let read = |(key, version): &(Key, Option<Id>)| Read {
            key: key.to_string().as_str().into(),
            version: version.map(|v| if v == 0 { 0 } else { self.id(v).0 }),
        };
        reads.iter().map(read).collect()
    }

    // Branches

    pub fn branch(&mut self, name: Name, new: NewLine, wanted: &Ruling<u64>) {
        let asked = NewBranch {
            name: format!("b{name}"),
            agent: Some(new.agent.to_owned()),
            parent: new.parent.map(|parent| self.lines[&parent]),
            parent_token: None,
            reads: match new.rule {
                Rule::Speculative => real::ReadRule::Speculative,
                Rule::Sealed => real::ReadRule::Sealed,
                Rule::Committed => real::ReadRule::Committed,
            },
            overwrite: if new.depend { real::Overwrite::Depend } else { real::Overwrite::Guard },
            lease_ms: new.lease_ms,
        };
        if let (Some(info), Ok(token)) =
            (agree("branch", self.store.create_branch(asked), wanted), wanted)
        {
            self.lines.insert(name, info.id);
            self.note_token(name, *token, info.token);
        }
    }

    /// Tokens rise strictly (I9).
    fn note_token(&mut self, name: Name, token: u64, real: Token) {
        let newest = self.tokens.values().max();
        assert!(newest.is_none_or(|newest| *newest < real), "I9: token {real} does not rise");
        self.tokens.insert((name, token), real);
    }

    pub fn takeover(&mut self, model: &Model, name: Name, gone: bool, wanted: &Ruling<u64>) {
        let by = gone.then_some("operator");
        let got = self.store.takeover(&format!("b{name}"), gone, by);
        if let (Some(info), Ok(token)) = (agree("takeover", got, wanted), wanted) {
            self.note_token(name, *token, info.token);
            for effect in model.own(name) {
                self.effect_tokens.insert((effect, *token), info.token);
            }
        }
    }

    pub fn resume(&mut self, handle: &Handle, wanted: &Ruling<u64>) {
        let (id, token) = self.held(handle);
        let got = self.store.resume(id, token);
        if let (Some(info), Ok(token)) = (agree("resume", got, wanted), wanted) {
            self.note_token(handle.name, *token, info.token);
        }
    }

    pub fn heartbeat(&mut self, handle: &Handle, wanted: &Ruling<()>) {
        let (id, token) = self.held(handle);
        agree("heartbeat", self.store.heartbeat(id, token), wanted);
    }

    pub fn merge(&mut self, handle: &Handle, wanted: &Ruling<()>) {
        let (id, token) = self.held(handle);
        agree("merge", self.store.merge(id, token), wanted);
    }

    pub fn seal(&mut self, handle: &Handle, wanted: &Ruling<()>) {
        let (id, token) = self.held(handle);
        agree("seal", self.store.seal(id, token), wanted);
    }

    /// The writers named are live ones and cover, directly or through others, every live one.
    fn check_seen(&self, model: &Model, live: &Ids, named: &[EffectId]) {
        let named = self.here(named);
        let covered: Ids = named.iter().flat_map(|w| model.closure(*w)).collect();
        assert!(named.is_subset(live), "observed {named:?}, the model says {live:?}");
        assert!(
            live.iter().all(|w| named.contains(w) || covered.contains(w)),
            "I12: observed {named:?}, which misses some of {live:?}"
        );
    }

    pub fn observe(
        &mut self,
        model: &Model,
        handle: &Handle,
        keys: &[(Key, Option<Id>)],
        since: Option<u64>,
        wanted: &Ruling<Vec<Seen>>,
    ) {
        let (id, token) = self.held(handle);
        let bracket = since.map(|since| self.brackets[&(handle.name, since)]);
        let got = self.store.observe(id, token, self.reads(keys), bracket, 0);
        let (Some(got), Ok(wanted)) = (agree("observe", got, wanted), wanted) else { return };
        for (observation, seen) in got.iter().zip(wanted) {
            let alive = |w: &Id| model.state(*w) == Life::Live;
            let live: Ids = seen.writers.iter().copied().filter(alive).collect();
            self.check_seen(model, &live, &observation.writers);
        }
        if let (Some(observation), Some(seen)) = (got.last(), wanted.last()) {
            self.brackets.insert((handle.name, seen.position), observation.at);
        }
    }

    // Effects

    fn placed(&self, item: &Item, payloads: &mut Payloads) -> Placed {
        let Call { tool, args, reads, writes, after, inverse, irreversible, deferred, name } =
            &item.call;
        let args = payloads.put(vec![0x18, 100 + args]);
        let mut call = real::Registration::new(format!("tool-{tool}"), args);
        call.reads = self.reads(reads);
        call.writes = writes.iter().map(|key| key.to_string().as_str().into()).collect();
        let behind = |behind: &Behind| match behind {
            Behind::Effect(id) => real::After::Effect(self.id(*id)),
            Behind::Item(place) => real::After::Item(*place as u64),
        };
        call.follows = match (after, &item.base) {
            (Some(after), _) => Follows::These(after.iter().map(behind).collect()),
            (None, Some(base)) => Follows::Turn(base.iter().map(|e| self.id(*e)).collect()),
            (None, None) => Follows::Tip,
        };
        call.inverse = inverse.as_ref().map(|inverse| real::Inverse {
            deadline_ms: inverse.deadline_ms,
            compare_and_set: inverse.compare_and_set,
            agent: inverse.anyone.then(|| "*".to_owned()),
            limitation: inverse.partial.then(|| "a trace stays".to_owned()),
            ..real::Inverse::call("undo", Some(args))
        });
        call.class = irreversible.then_some(real::Class::Irreversible);
        call.mode = deferred.then_some(real::Mode::Deferred);
        call.idempotency_key = name.map(|name| vec![name]);
        let token = self.tokens[&(item.branch, item.token)];
        Placed { branch: self.lines[&item.branch], token, call }
    }

    pub fn register(&mut self, items: &[Item], wanted: &Ruling<Vec<Registered>>) {
        let mut payloads = Payloads::default();
        let calls = items.iter().map(|item| self.placed(item, &mut payloads)).collect();
        let got = self.store.register(calls, payloads, 0);
        let (Some(got), Ok(wanted)) = (agree("register", got, wanted), wanted) else { return };
        for (receipt, wanted) in got.iter().zip(wanted) {
            assert_eq!(receipt.created, wanted.created, "created, the model says {wanted:?}");
            assert_eq!(receipt.token.is_some(), wanted.token.is_some(), "token of {wanted:?}");
            if receipt.created {
                let newest = self.back.last_key_value().map(|(id, _)| *id);
                assert!(newest.is_none_or(|id| id < receipt.effect), "I9: ids rise");
                self.ids.insert(wanted.effect, receipt.effect);
                self.back.insert(receipt.effect, wanted.effect);
                if let (Some(token), Some(real)) = (wanted.token, receipt.token) {
                    self.effect_tokens.insert((wanted.effect, token), real);
                }
            } else {
                assert_eq!(receipt.effect, self.id(wanted.effect), "the effect of a known name");
            }
        }
    }

    fn effect_token(&self, effect: Id, token: u64) -> (EffectId, Token) {
        (self.id(effect), self.effect_tokens[&(effect, token)])
    }

    pub fn report(&mut self, effect: Id, token: u64, ran: bool, wanted: &Ruling<()>) {
        let (id, token) = self.effect_token(effect, token);
        if ran {
            let none = Payloads::default();
            let got = self.store.done(id, token, b"\xf6".to_vec(), None, none, true);
            agree("done", got, wanted);
        } else {
            let problem = Problem::new("Refused", "by the tool");
            agree("not_run", self.store.not_run(id, token, problem), wanted);
        }
    }

    pub fn late_observe(
        &mut self,
        model: &Model,
        effect: Id,
        token: u64,
        keys: &[Key],
        wanted: &Ruling<Ids>,
    ) {
        let (id, token) = self.effect_token(effect, token);
        let keys: Vec<(Key, Option<Id>)> = keys.iter().map(|key| (*key, None)).collect();
        let got = self.store.observe_late(id, token, self.reads(&keys));
        if let (Some(got), Ok(live)) = (agree("effect.observe", got, wanted), wanted) {
            for observation in &got {
                self.check_seen(model, live, &observation.writers);
            }
        }
    }

    pub fn close(&mut self, effect: Id, wanted: &Ruling<()>) {
        let got = self.store.close_effect(self.id(effect), "operator", "the host is gone");
        agree("close", got, wanted);
    }

    pub fn exposed(&mut self, effect: Id, token: u64, wanted: &Ruling<()>) {
        let (id, token) = self.effect_token(effect, token);
        agree("exposed", self.store.exposed(id, token, "a customer"), wanted);
    }

    // Fence

    fn check_fence(&mut self, wanted: &Fence, got: &real::FenceInfo) {
        assert_eq!(fence_is(got.status), wanted.status, "{got:?}, the model says {wanted:?}");
        if let Some(id) = got.id {
            self.fences.insert(wanted.id, id);
        }
    }

    pub fn commit(&mut self, handle: &Handle, target: Ref, never: bool, wanted: &Ruling<Fence>) {
        let (_, token) = self.held(handle);
        let escalate = if never { Escalate::Never } else { Escalate::Wait };
        let got = self.store.commit(self.target(target), token, escalate, 0);
        if let (Some(got), Ok(wanted)) = (agree("commit", got, wanted), wanted) {
            self.check_fence(wanted, &got);
        }
    }

    fn check_settled(&mut self, wanted: &Settled, got: &real::Reconciliation) {
        let committed = wanted.fence.as_ref().map_or_else(Ids::new, |f| f.committed.clone());
        assert_eq!(self.here(&got.committed), committed, "committed, the model says {wanted:?}");
        assert_eq!(self.here(&got.doomed), wanted.doomed, "doomed, the model says {wanted:?}");
        assert_eq!(self.here(&got.cascaded), wanted.cascaded, "cascaded: {wanted:?}");
        assert!(self.here(&got.kept).is_subset(&wanted.kept), "kept: {got:?}, not {wanted:?}");
        assert_eq!(got.rollback.is_some(), wanted.rollback.is_some(), "rollback: {wanted:?}");
        assert_eq!(got.fence.is_some(), wanted.fence.is_some(), "fence: {wanted:?}");
        if let (Some(got), Some(wanted)) = (&got.fence, &wanted.fence) {
            self.check_fence(wanted, got);
        }
    }

    pub fn abort(&mut self, handle: &Handle, wanted: &Ruling<Settled>) {
        let (id, token) = self.held(handle);
        let got = self.store.abort(Target::Branch(id), token, "changed its mind", None);
        if let (Some(got), Ok(wanted)) = (agree("abort", got, wanted), wanted) {
            self.check_settled(wanted, &got);
        }
    }

    pub fn reconcile(&mut self, sides: &Sides, wanted: &Ruling<Settled>) {
        let commit = sides.commit.iter().map(|target| self.target(*target)).collect();
        let abort = sides.abort.iter().map(|target| self.target(*target)).collect();
        let conflict = if sides.drop_winners { OnConflict::Abort } else { OnConflict::Raise };
        let escalate = if sides.never { Escalate::Never } else { Escalate::Wait };
        let by = Some("judge");
        let got = self.store.reconcile(commit, abort, sides.closure, by, None, conflict, escalate);
        if let (Some(got), Ok(wanted)) = (agree("reconcile", got, wanted), wanted) {
            self.check_settled(wanted, &got);
        }
    }

    // Undo

    pub fn claim(&mut self, agent: &str, lease_ms: u64, wanted: &Ruling<Option<Claimed>>) {
        let spec = real::ClaimSpec {
            agent: agent.to_owned(),
            tools: None,
            lease_ms,
            rollback: None,
            retry: None,
            on_failure: None,
            except: Vec::new(),
        };
        let got = self.store.claim(&spec, 0);
        let (Some(got), Ok(wanted)) = (agree("claim", got, wanted), wanted) else { return };
        let place =
            got.as_ref().map(|step| (self.back[&step.effect], step.attempt, step.generation));
        let expected = wanted.map(|step| (step.effect, step.attempt, step.generation));
        assert_eq!(place, expected, "claim: (effect, attempt, generation)");
        if let (Some(step), Some(wanted)) = (got, wanted) {
            let key = (wanted.effect, wanted.generation);
            let known = self.step_keys.entry(key).or_insert_with(|| step.idempotency_key.clone());
            assert_eq!(*known, step.idempotency_key, "I14: the key changed within a generation");
            let distinct: BTreeSet<&String> = self.step_keys.values().collect();
            assert_eq!(distinct.len(), self.step_keys.len(), "I14: one key for two generations");
            self.steps.insert(*wanted, StepHold { effect: step.effect, token: step.token });
        }
    }

    pub fn end(&mut self, step: Claimed, end: Ending, wanted: &Ruling<()>) {
        let hold = self.steps[&step];
        let problem = Problem::new("Broken", "the tool said no");
        let end = match end {
            Ending::Complete => StepEnd::Completed(None),
            Ending::Fail(Failing::Error) => StepEnd::Failed(problem),
            Ending::Fail(Failing::Permanent) => StepEnd::Permanent(problem),
            Ending::Fail(Failing::Later(wait)) => StepEnd::Later(problem, wait),
            Ending::Release => StepEnd::Interrupted,
            Ending::Renew(lease_ms) => {
                agree("renew", self.store.renew_step(hold, lease_ms), wanted);
                return;
            }
        };
        agree("end_step", self.store.end_step(hold, end, Payloads::default(), None), wanted);
    }

    pub fn compensate(&mut self, wanted: &[Id]) {
        let mut order = Vec::new();
        let options = CompensateOptions { lease_ms: 60_500, ..CompensateOptions::default() };
        // A backoff is slept through by compensate, and this clock stands: the caller avoids that.
        let done = self.store.compensate(&options, &mut |step| {
            order.push(step.effect);
            Handled::Completed(None)
        });
        done.expect("compensate");
        let order: Vec<Id> = order.iter().map(|e| self.back[e]).collect();
        assert_eq!(order, wanted, "the order of undo");
    }

    fn approval(&self, rollback: Id) -> real::ApprovalId {
        let info = self.store.rollback(self.rollbacks[&rollback]).expect("a rollback");
        *info.approvals.last().expect("an approval was asked for")
    }

    pub fn answer(&mut self, rollback: Id, approve: bool, reason: bool, wanted: &Ruling<()>) {
        let reason = reason.then_some("looked at");
        let got = self.store.answer(self.approval(rollback), approve, "person", reason);
        agree("answer", got, wanted);
    }

    pub fn ask_again(&mut self, rollback: Id, wanted: &Ruling<()>) {
        let ask = real::Ask::Rollback(self.rollbacks[&rollback]);
        agree("ask", self.store.ask(ask, "operator", "please", Payloads::default()), wanted);
    }

    pub fn repair(&mut self, model: &Model, effect: Id, retry: bool, wanted: &Ruling<()>) {
        let rollback = model.effects[&effect].rollback.expect("a doomed effect");
        let (rollback, id) = (self.rollbacks[&rollback], self.id(effect));
        let got = if retry {
            self.store.retry_step(rollback, id, "operator", "repaired")
        } else {
            self.store.resolve_step(rollback, id, "operator", "by hand", Vec::new())
        };
        agree("repair", got, wanted);
    }

    pub fn tick(&mut self) {
        self.store.tick().expect("tick");
    }

    /// Closes and opens an LMDB store; memory has nothing to open.
    pub fn reopen(&mut self) {
        let Some(path) = self.path.clone() else { return };
        self.store.close().expect("close");
        let memory = EffectStore::in_memory(Options::default()).expect("a stand-in");
        drop(std::mem::replace(&mut self.store, memory));
        self.store = EffectStore::open(path, self.options.clone()).expect("open again");
    }

    // Looking

    pub fn compare(&mut self, model: &Model) {
        for effect in model.effects.keys() {
            self.compare_effect(model, *effect);
        }
        for name in model.branches.keys() {
            self.compare_branch(model, *name);
            self.compare_decision(model, Ref::Branch(*name));
        }
        for effect in model.live() {
            self.compare_decision(model, Ref::Effect(effect));
        }
        for (fence, id) in &self.fences {
            let got = self.store.fence(*id).expect("a fence");
            assert_eq!(fence_is(got.status), model.fences[fence].status, "fence {fence}");
        }
        self.compare_rollbacks(model);
    }

    /// Learns the rollbacks of effects without comparing anything.
    pub fn learn(&mut self, model: &Model) {
        for effect in model.effects.values() {
            if let Some(rollback) = effect.rollback
                && !self.rollbacks.contains_key(&rollback)
                && let Some(got) = self.store.effect(self.id(effect.id)).expect("effect").rollback
            {
                self.rollbacks.insert(rollback, got);
            }
        }
    }

    fn compare_effect(&mut self, model: &Model, effect: Id) {
        let wanted = &model.effects[&effect];
        let got = self.store.effect(self.id(effect)).expect("an effect");
        let state = match got.state {
            real::EffectState::Live => Life::Live,
            real::EffectState::Committed => Life::Committed,
            real::EffectState::Doomed => Life::Doomed,
            real::EffectState::Void => Life::Void,
        };
        let outcome = match got.outcome {
            real::Outcome::Unknown => Known::Unknown,
            real::Outcome::Done => Known::Done,
            real::Outcome::NotRun => Known::NotRun,
        };
        let place = self.id(effect);
        assert_eq!((state, outcome), (wanted.state, wanted.outcome), "effect {effect} ({place})");
        assert_eq!(got.sealed, model.sealed(effect), "sealed of {effect} ({place})");
        assert_eq!(got.branch, self.lines[&wanted.branch], "branch of {effect} ({place})");
        assert_eq!(got.rollback.is_some(), wanted.rollback.is_some(), "rollback of {effect}");
        if let (Some(got), Some(wanted)) = (got.rollback, wanted.rollback) {
            let known = self.rollbacks.entry(wanted).or_insert(got);
            assert_eq!(*known, got, "effect {effect} is not in the rollback of its fellows");
        }
    }

    fn compare_branch(&self, model: &Model, name: Name) {
        let got = self.store.branch(self.lines[&name]).expect("a branch");
        let wanted = match model.branches[&name].state {
            BranchIs::Open => real::BranchState::Open,
            BranchIs::Doomed => real::BranchState::Doomed,
            BranchIs::Merged | BranchIs::Aborted => real::BranchState::Closed,
        };
        assert_eq!(got.state, wanted, "state of b{name}");
        if wanted == real::BranchState::Open {
            assert_eq!(self.here(&got.tip), model.tip(name), "tip of b{name}");
            let token = self.tokens[&(name, model.branches[&name].token)];
            assert_eq!(got.token, token, "token of b{name}");
        }
    }

    fn compare_decision(&self, model: &Model, target: Ref) {
        let wanted = model.decide(target);
        let got = self.store.decide(self.target(target)).expect("decide");
        let kind = match got.kind {
            real::DecisionKind::Commit => Kind::Commit,
            real::DecisionKind::Abort => Kind::Abort,
            real::DecisionKind::Escalate => Kind::Escalate,
        };
        if wanted.kind == Kind::Abort {
            assert_eq!(kind, wanted.kind, "decide {target:?}");
            return;
        }
        let why = |reason| match reason {
            real::BlockReason::NoVote => Why::NoVote,
            real::BlockReason::Unknown => Why::Unknown,
        };
        let blockers = got.blockers.iter().map(|b| (self.back[&b.effect], why(b.reason)));
        let got = Decision { kind, closure: self.here(&got.closure), blockers: blockers.collect() };
        assert_eq!(got, wanted, "decide {target:?}");
    }

    fn compare_rollbacks(&self, model: &Model) {
        let blocked = model.blocked(&model.before());
        for (rollback, id) in &self.rollbacks {
            let info = self.store.rollback(*id).expect("a rollback");
            let report = info.report;
            let failed = report.failed.iter().map(|f| (self.back[&f.effect], f.kind.name()));
            let held: Vec<EffectId> = report.blocked.iter().map(|b| b.effect).collect();
            let got = super::rollback::Places {
                completed: self.here(&report.completed),
                unsettled: self.here(&report.unsettled),
                failed: failed.collect(),
                blocked: self.here(&held),
                pending: self.here(&report.pending),
                discarded: self.here(&report.discarded),
            };
            assert_eq!(
                got,
                model.places(*rollback, &blocked),
                "I18: report of rollback {rollback}"
            );
            assert_eq!(self.here(&info.effects), model.rollbacks[rollback].members, "members");
            let waits = info.state == real::RollbackState::AwaitingApproval;
            let pending = model.rollbacks[rollback].gate == Gate::Pending;
            assert_eq!(waits, pending, "approval of rollback {rollback}: {:?}", info.state);
        }
    }
}

fn fence_is(status: real::FenceStatus) -> FenceIs {
    match status {
        real::FenceStatus::Waiting => FenceIs::Waiting,
        real::FenceStatus::Committed => FenceIs::Committed,
        real::FenceStatus::Aborted => FenceIs::Aborted,
    }
}

/// How a worker ends an attempt, or goes on with it.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    Complete,
    Fail(Failing),
    Release,
    Renew(u64),
}
