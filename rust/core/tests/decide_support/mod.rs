//! A store in memory for stories about decisions: the state, the log as a list of events, and a
//! clock that the story moves. After every command it folds the records that the state says it
//! needs, and compares.

#![allow(dead_code)] // Each test file uses its own part.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)] // Short calls in the tests.

use effectstore::decide::{
    Ended, Fate, History, HistoryError, Stop, decide, report_of, rollback_state,
};
use effectstore::model::*;
use effectstore::state::{Rollback, State, Timer};

#[derive(Default)]
pub struct Book {
    pub log: Vec<(u64, Event)>,
}

impl History for Book {
    fn branch_named(&self, name: &str) -> Result<Option<BranchId>, HistoryError> {
        let made = self.log.iter().position(
            |(_, event)| matches!(event, Event::BranchCreated { name: known, .. } if known == name),
        );
        Ok(made.map(|place| BranchId(place as u64 + 1)))
    }

    fn ended(&self, branch: BranchId) -> Result<Option<Ended>, HistoryError> {
        let mut found = None;
        for (seq, (_, event)) in (1_u64..).zip(&self.log) {
            let token = Token { incarnation: 1, number: seq };
            match event {
                Event::BranchCreated { .. } if seq == branch.0 => {
                    found = Some(Ended { token, merged: false, cause: None });
                }
                Event::BranchTaken { branch: id, .. } | Event::BranchResumed { branch: id }
                    if *id == branch =>
                {
                    found = found.map(|ended| Ended { token, ..ended });
                }
                Event::BranchMerged { branch: id } if *id == branch => {
                    found = found.map(|ended| Ended { merged: true, ..ended });
                }
                _ => {}
            }
        }
        Ok(found)
    }

    fn known_key(&self, _key: &[u8]) -> Result<Option<EffectId>, HistoryError> {
        Ok(None)
    }

    fn event(&self, seq: u64) -> Result<Option<Event>, HistoryError> {
        let place = usize::try_from(seq).ok().and_then(|seq| seq.checked_sub(1));
        Ok(place.and_then(|place| self.log.get(place)).map(|(_, event)| event.clone()))
    }

    fn fate(&self, effect: EffectId) -> Result<Option<Fate>, HistoryError> {
        if !matches!(self.event(effect.0)?, Some(Event::Registered(_))) {
            return Ok(None);
        }
        let mut fate = None;
        for (_, event) in &self.log {
            match event {
                Event::Fenced { members, .. } if members.contains(effect) => {
                    fate = Some(Fate::Committed);
                }
                Event::Doomed(doom) if doom.members.contains(effect) => fate = Some(Fate::Doomed),
                Event::NotRun { effect: void, .. } if *void == effect && fate.is_none() => {
                    fate = Some(Fate::Void);
                }
                _ => {}
            }
        }
        Ok(fate)
    }

    fn scan(
        &self,
        from: u64,
        visit: &mut dyn FnMut(u64, &Event) -> bool,
    ) -> Result<(), HistoryError> {
        for (place, (_, event)) in self.log.iter().enumerate() {
            let seq = place as u64 + 1;
            if seq >= from && !visit(seq, event) {
                return Ok(());
            }
        }
        Ok(())
    }
}

pub struct Store {
    pub state: State,
    pub book: Book,
    pub now_ms: u64,
}

/// A branch of a story.
#[derive(Clone, Copy)]
pub struct Line {
    pub id: BranchId,
    pub token: Token,
}

/// A claimed step of a story.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed {
    pub effect: u64,
    pub info: StepInfo,
}

impl Store {
    pub fn new(policy: Policy) -> Self {
        let mut store = Store { state: State::default(), book: Book::default(), now_ms: 1_000_000 };
        let retry = Retry { jitter: 0.0, ..policy.retry.clone() };
        let policy = Policy { retry, ..policy };
        let made = Command::Create { store_id: [7; 16], limits: Limits::default(), policy };
        store.run(&made).unwrap();
        store
    }

    pub fn try_run(&mut self, command: &Command) -> Result<Reply, Refusal> {
        let verdict = decide(&mut self.state, &self.book, command, self.now_ms);
        self.book.log.extend(verdict.events.into_iter().map(|event| (self.now_ms, event)));
        assert_eq!(self.state.head, self.book.log.len() as u64);
        self.check();
        verdict.reply.map_err(|stop| match stop {
            Stop::Refused { refusal, .. } => refusal,
            Stop::Unreadable(error) => panic!("{error:?}"),
        })
    }

    pub fn run(&mut self, command: &Command) -> Result<Reply, Refusal> {
        self.try_run(command)
    }

    /// Folding what the state needs gives the state again, and reports add up (I10, I18, I19).
    pub fn check(&mut self) {
        self.state.tidy();
        let mut again = State::default();
        for seq in self.state.needed() {
            let (now_ms, event) = &self.book.log[usize::try_from(seq).unwrap() - 1];
            again.apply(seq, *now_ms, event);
        }
        again.tidy();
        assert_eq!(summary(&again), summary(&self.state), "a fold of the needed records differs");
        for rollback in self.state.rollbacks.values() {
            let report = report_of(&self.state, rollback);
            assert_eq!(report.size(), rollback.members.len(), "{report:?}");
            assert!(rollback.open || report.clean());
        }
    }

    pub fn branch(&mut self, name: &str) -> Line {
        let made = self.run(&Command::CreateBranch {
            name: name.into(),
            agent: format!("agent-{name}"),
            parent: None,
            reads: ReadRule::Speculative,
            overwrite: Overwrite::Guard,
            lease_ms: None,
            parent_token: None,
        });
        let Ok(Reply::Branch(info)) = made else { panic!("{made:?}") };
        Line { id: info.id, token: info.token }
    }

    pub fn register(&mut self, line: Line, call: Registration) -> u64 {
        self.try_register(line, call).unwrap()
    }

    pub fn try_register(&mut self, line: Line, call: Registration) -> Result<u64, Refusal> {
        let placed = Placed { branch: line.id, token: line.token, call };
        match self.run(&Command::Register { calls: vec![placed], observed: Vec::new() })? {
            Reply::Receipts(receipts) => Ok(receipts[0].effect.0),
            other => panic!("{other:?}"),
        }
    }

    /// Registers a call and reports that it ran.
    pub fn ran(&mut self, line: Line, call: Registration) -> u64 {
        let effect = self.register(line, call);
        self.done(effect).unwrap();
        effect
    }

    fn token(&self, effect: u64) -> Token {
        let known = self.state.effects.get(EffectId(effect));
        known.map_or(Token { incarnation: 1, number: effect }, |known| known.token)
    }

    pub fn done(&mut self, effect: u64) -> Result<Reply, Refusal> {
        let token = self.token(effect);
        let result = PayloadRef::of(b"result");
        self.run(&Command::Done { effect: EffectId(effect), token, result, inverse: None })
    }

    pub fn not_run(&mut self, effect: u64) -> Result<Reply, Refusal> {
        let token = self.token(effect);
        let problem = Problem::new("Refused", "no");
        self.run(&Command::NotRun { effect: EffectId(effect), token, problem })
    }

    pub fn abort(&mut self, effects: &[u64]) -> Option<RollbackId> {
        let abort = effects.iter().map(|effect| Target::Effect(EffectId(*effect))).collect();
        self.reconcile(Vec::new(), abort).rollback
    }

    pub fn commit(&mut self, effects: &[u64]) -> Reconciliation {
        let commit = effects.iter().map(|effect| Target::Effect(EffectId(*effect))).collect();
        self.reconcile(commit, Vec::new())
    }

    fn reconcile(&mut self, commit: Vec<Target>, abort: Vec<Target>) -> Reconciliation {
        let settled = self.run(&Command::Reconcile {
            commit,
            abort,
            closure: true,
            by: Some("judge".into()),
            reason: None,
            on_conflict: OnConflict::Raise,
            escalate: Escalate::Wait,
        });
        match settled {
            Ok(Reply::Reconciliation(settled)) => settled,
            other => panic!("{other:?}"),
        }
    }

    pub fn spec(agent: &str) -> ClaimSpec {
        ClaimSpec {
            agent: agent.into(),
            tools: None,
            lease_ms: 60_000,
            rollback: None,
            retry: None,
            on_failure: None,
            except: Vec::new(),
        }
    }

    pub fn claim(&mut self) -> Option<Claimed> {
        self.claim_as("*")
    }

    pub fn claim_as(&mut self, agent: &str) -> Option<Claimed> {
        match self.run(&Command::Claim { spec: Self::spec(agent) }) {
            Ok(Reply::Step(step)) => {
                step.map(|step| Claimed { effect: step.info.effect.0, info: step.info })
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn end(&mut self, step: &Claimed, end: StepEnd) -> Result<Reply, Refusal> {
        let hold = StepHold { effect: step.info.effect, token: step.info.token };
        self.run(&Command::EndStep { hold, end, next: None })
    }

    pub fn complete(&mut self, step: &Claimed) -> Result<Reply, Refusal> {
        self.end(step, StepEnd::Completed(None))
    }

    /// Undoes all that can be undone, and tells in which order.
    pub fn undo_all(&mut self) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(step) = self.claim() {
            order.push(step.effect);
            self.complete(&step).unwrap();
        }
        order
    }

    pub fn rollback(&self, id: RollbackId) -> &Rollback {
        &self.state.rollbacks[&id]
    }

    pub fn state_of(&self, id: RollbackId) -> RollbackState {
        rollback_state(&self.state, self.rollback(id))
    }

    pub fn report(&self, id: RollbackId) -> Report {
        report_of(&self.state, self.rollback(id))
    }

    pub fn answer(&mut self, approval: ApprovalId, approve: bool) -> Result<Reply, Refusal> {
        let by = "boss".into();
        self.run(&Command::Answer { approval, approve, by, reason: Some("looked at it".into()) })
    }

    pub fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
        self.run(&Command::Tick).unwrap();
    }

    pub fn kinds(&self, last: usize) -> Vec<&'static str> {
        self.book.log.iter().rev().take(last).rev().map(|(_, event)| event.kind()).collect()
    }
}

/// What is undone, as far as it decides anything.
pub fn summary(state: &State) -> Vec<String> {
    let mut lines = vec![format!("live {}", state.live)];
    for key in ["K", "L", "M", "X", "Y", "Z"] {
        let trace = state.keys.get(&Key::from(key)).and_then(|entry| entry.trace.as_ref());
        lines.push(format!("{key} {:?}", trace.map(|trace| (trace.dirty_at, trace.dirty_by))));
    }
    for effect in state.effects.iter() {
        lines.push(format!(
            "{} {:?} {:?} late {} closed {} at {} step {:?} of {:?}",
            effect.id,
            effect.state,
            effect.outcome,
            effect.late,
            effect.closed,
            effect.position,
            effect.step,
            effect.rollback,
        ));
        for key in &effect.writes {
            let entry = state.keys.get(key);
            lines.push(format!(
                "  {key:?} writers {:?} later {:?} dirty {:?}",
                entry.map(|entry| &entry.writers),
                entry.map(|entry| entry.later.as_ref().map(|later| (later.effect, later.position))),
                state.dirty_writers(key),
            ));
        }
    }
    lines.extend(state.rollbacks.values().map(|rollback| format!("{rollback:?}")));
    let own = |timer: &Timer| matches!(timer, Timer::Acks(_) | Timer::Confirm(_));
    let timers: Vec<_> = state.timers.iter().filter(|(_, timer)| own(timer)).collect();
    lines.push(format!("{:?} {timers:?}", state.breaks.notices));
    lines.extend(state.breaks.known.values().map(|known| {
        format!("{:?} {:?} {} {}", known.signal, known.waiting, known.unheard, known.confirmed)
    }));
    lines.extend(state.approvals.values().map(|approval| format!("{approval:?}")));
    lines.push(format!("{:?}", state.artifacts));
    lines
}

/// A call that writes one key and has an inverse.
pub fn write(key: &str) -> Registration {
    plain("write").writes(key)
}

/// A call with an inverse.
pub fn plain(tool: &str) -> Registration {
    Registration::new(tool, PayloadRef::of(b"args"))
        .inverse(Inverse::call(format!("undo_{tool}"), Some(PayloadRef::of(b"old"))))
}
