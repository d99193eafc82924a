//! The decisions: a pure function from state, command and moment to events and an answer.
//!
//! A verb runs inside a [`Turn`]. It checks everything first and refuses with nothing emitted (but
//! an audit record); then it emits events. Emitting folds the event at once, with the same function
//! that replay uses, so that what a verb decides next stands on what it has just decided. Whoever
//! calls throws the state away if the events cannot be made durable.

mod approval;
mod artifact;
mod branch;
mod breaks;
mod commit;
mod confirm;
mod doom;
mod evidence;
mod follow;
mod governed;
mod history;
mod look;
mod meta;
mod observe;
mod outbox;
mod outcome;
mod plan;
mod proposal;
mod reads;
mod recall;
mod reconcile;
mod register;
mod registration;
mod report;
mod review;
mod step;
mod story;
mod timers;
mod tokens;
mod trail;
mod vote;
mod words;

pub use history::{Ended, Fate, History, HistoryError};
pub use look::{blockers_of, decision, of_ended};
pub use plan::{plan_of, rollback_state};
pub use proposal::{impact_of, impact_of_request, impact_of_rollback, plan_of_request};
pub use report::{is_worth_waiting, report_of};
pub use words::REASON_BYTES;

use crate::model::{Command, EffectState, Event, Refusal, Reply};
use crate::state::State;

/// Why a verb stopped.
#[derive(Clone, Debug, PartialEq)]
pub enum Stop {
    /// A rule said no.
    Refused {
        /// Which, with what it concerns.
        refusal: Refusal,
        /// The item of a batch.
        index: Option<usize>,
    },
    /// The log could not be read.
    Unreadable(HistoryError),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Stop::Refused { refusal, index: None }
    }
}

impl From<HistoryError> for Stop {
    fn from(error: HistoryError) -> Self {
        Stop::Unreadable(error)
    }
}

/// The answer of a verb.
pub type Ruling<T> = Result<T, Stop>;

/// Events and answer of a command.
#[derive(Debug)]
pub struct Verdict {
    /// What happened, in order; already folded into the state.
    pub events: Vec<Event>,
    /// What the caller is told once the events are durable.
    pub reply: Ruling<Reply>,
}

/// One command in the course of its decision.
pub struct Turn<'a> {
    /// The state, with all events emitted so far folded in.
    pub state: &'a mut State,
    /// Settled things.
    pub history: &'a dyn History,
    /// The moment of the decision, in milliseconds of the store's clock.
    pub now_ms: u64,
    events: Vec<Event>,
}

impl Turn<'_> {
    /// The number that the next event will get.
    pub fn next(&self) -> u64 {
        self.state.head + 1
    }

    /// Lets an event happen: it is folded at once and gets the number that is returned.
    pub fn emit(&mut self, event: Event) -> u64 {
        let seq = self.next();
        self.state.apply(seq, self.now_ms, &event);
        self.events.push(event);
        seq
    }
}

/// Decides a command at a moment.
///
/// What fell due by then happens first, refused commands included; what follows from the command
/// (intents that lost their last blocker, rollbacks that are finished) happens last, in the same
/// transaction.
pub fn decide(state: &mut State, history: &dyn History, command: &Command, now_ms: u64) -> Verdict {
    state.tidy();
    let mut turn = Turn { state, history, now_ms, events: Vec::new() };
    turn.due();
    let reply = match turn.rule(command) {
        Err(Stop::Unreadable(error)) => Err(Stop::Unreadable(error)),
        other => turn.follow().and(other),
    };
    let reply = reply.map(|reply| turn.with_state(reply));
    Verdict { events: turn.events, reply }
}

impl Turn<'_> {
    /// An effect's report is answered with what the whole decision made of the effect, so that
    /// nobody has to look again.
    fn with_state(&self, reply: Reply) -> Reply {
        let Reply::Effect { effect, .. } = reply else { return reply };
        let known = self.state.effects.get(effect);
        let stays =
            known.filter(|known| known.state != EffectState::Committed || known.still_to_run());
        Reply::Effect { effect, state: stays.map(|known| known.state) }
    }

    fn rule(&mut self, command: &Command) -> Ruling<Reply> {
        self.words(command)?;
        match command {
            Command::Create { .. }
            | Command::Configure { .. }
            | Command::Freeze { .. }
            | Command::Unfreeze { .. }
            | Command::Acknowledge { .. }
            | Command::Restore
            | Command::Reopen => self.meta(command),
            Command::CreateBranch { .. }
            | Command::TakeOver { .. }
            | Command::Resume { .. }
            | Command::Merge { .. }
            | Command::Heartbeat { .. } => self.branch(command),
            Command::Register { calls, observed } => self.register(calls, observed),
            Command::Observe { branch, token, keys, since, durable } => {
                self.observe(*branch, *token, keys, *since, *durable)
            }
            Command::ObserveLate { effect, token, keys } => {
                self.observe_late(*effect, *token, keys)
            }
            Command::Done { effect, token, result, inverse } => {
                self.done(*effect, *token, *result, inverse.as_ref())
            }
            Command::NotRun { effect, token, problem } => self.not_run(*effect, *token, problem),
            Command::Exposed { effect, token, to } => self.exposed(*effect, *token, to),
            Command::Close { effect, by, reason } => self.close(*effect, by, reason),
            Command::Seal { branch, token } => self.seal(*branch, *token),
            Command::Commit { target, token, escalate } => self.commit(*target, *token, *escalate),
            Command::Abort { target, token, reason, by } => {
                self.abort(*target, *token, reason, by.as_deref())
            }
            Command::Reconcile { .. } => self.reconcile(command),
            Command::Claim { spec } => self.claim(spec),
            Command::EndStep { hold, end, next } => self.end_step(*hold, end, next.as_ref()),
            Command::RenewStep { hold, lease_ms } => self.renew_step(*hold, *lease_ms),
            Command::RetryStep { rollback, effect, by, reason } => {
                self.retry_step(*rollback, *effect, by, reason)
            }
            Command::ResolveStep { rollback, effect, by, reason, versions } => {
                self.resolve_step(*rollback, *effect, by, reason, versions)
            }
            Command::Ask { ask, by, reason } => self.ask(ask, by, reason),
            Command::Answer { approval, approve, by, reason } => {
                self.answer(*approval, *approve, by, reason.as_deref())
            }
            Command::Deliver { agent, tools, lease_ms } => {
                self.deliver(agent, tools.as_deref(), *lease_ms)
            }
            Command::HoldDelivery { effect, token, lease_ms } => {
                self.hold_delivery(*effect, *token, *lease_ms)
            }
            Command::NewBoot | Command::WorkersGone { .. } => Ok(self.gone(command)),
            Command::RequestRollback { .. }
            | Command::RecordRootCause { .. }
            | Command::WaiveRemedy { .. } => self.govern(command),
            Command::SignalBreak { .. } => self.signal_break(command),
            Command::AckNotice { notice, agent } => self.ack_notice(*notice, agent),
            Command::CreateArtifacts { .. }
            | Command::MoveArtifact { .. }
            | Command::FailArtifact { .. } => self.artifacts(command),
            Command::Tick => Ok(Reply::Events(self.events.len() as u64)),
        }
    }
}
