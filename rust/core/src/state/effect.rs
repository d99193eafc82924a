//! An effect in memory: live, doomed and not yet settled, or committed and still to be delivered.

use std::sync::Arc;

use super::rollback::Step;
use crate::model::{
    BranchId, Class, EffectId, EffectState, FenceId, Inverse, Key, Mode, Outcome, PayloadRef, Read,
    RollbackId, Token,
};

/// The hold of a delivered effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Who runs it.
    pub agent: String,
    /// End of the lease, in milliseconds; `None` once it was given back or ran out.
    pub until_ms: Option<u64>,
    /// How often it was handed out.
    pub attempts: u32,
}

impl Delivery {
    /// One that is over, of an effect that memory had let go.
    pub fn ended() -> Self {
        Delivery { agent: String::new(), until_ms: None, attempts: 1 }
    }
}

/// An effect in memory.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is a fact of its own.
pub struct Effect {
    /// Its id.
    pub id: EffectId,
    /// Its owner; after a merge, the parent.
    pub branch: BranchId,
    /// The token of its outcome.
    pub token: Token,
    /// Its tool.
    pub tool: Arc<str>,
    /// Its class; what an outside party saw is at least partial.
    pub class: Class,
    /// Its mode.
    pub mode: Mode,
    /// Its inverse as last known.
    pub inverse: Option<Arc<Inverse>>,
    /// The record that holds the inverse's arguments.
    pub inverse_record: u64,
    /// Its declared reads.
    pub reads: Box<[Read]>,
    /// Its writes.
    pub writes: Box<[Key]>,
    /// Effects whose version it named: it falls with them even if they never happened.
    pub named: Vec<EffectId>,
    /// Void effects whose version it may have seen all the same.
    pub voids: Vec<EffectId>,
    /// What is known of its call.
    pub outcome: Outcome,
    /// The record that holds its result, and the result's reference.
    pub result: Option<(u64, PayloadRef)>,
    /// The outcome came after the decision against it.
    pub late: bool,
    /// A stale holder said that the call ran.
    pub evidence: bool,
    /// Its worker is known to be gone.
    pub closed: bool,
    /// Its state.
    pub state: EffectState,
    /// Branches whose vote is missing, from its owner up.
    pub missing_votes: Vec<BranchId>,
    /// Its place in the order of writes: its id, or the number of its delivery.
    pub position: u64,
    /// Moment past which its inverse is not attempted, in milliseconds.
    pub deadline_ms: Option<u64>,
    /// It is committed, and a governed rollback undoes it; `state` says doomed, since that is what it
    /// counts as for everything new.
    pub governed: bool,
    /// The rollback that holds it.
    pub rollback: Option<RollbackId>,
    /// The step that undoes it.
    pub step: Option<Box<Step>>,
    /// How it was handed out, for a deferred one.
    pub delivery: Option<Box<Delivery>>,
    /// The fence that committed it, for a deferred one that is still to run.
    pub fence: Option<FenceId>,
    /// Branches that hold it as handed on, observed or refused.
    pub held_by: Vec<BranchId>,
    /// Intents that name it as a target.
    pub intents: Vec<FenceId>,
    /// Intents that wait for it.
    pub watchers: Vec<FenceId>,
    /// Records that memory needs for it, ascending.
    pub records: Vec<u64>,
}

impl Effect {
    /// The keys that it read without naming a version.
    pub fn unnamed_reads(&self) -> impl Iterator<Item = &Key> {
        self.reads.iter().filter(|read| read.version.is_none()).map(|read| &read.key)
    }

    /// Live: registered, neither committed nor doomed nor void.
    pub fn is_live(&self) -> bool {
        self.state == EffectState::Live
    }

    /// Its state as it is shown: a governed rollback leaves what is committed committed.
    pub fn shown_state(&self) -> EffectState {
        if self.governed { EffectState::Committed } else { self.state }
    }

    /// Doomed, or to be undone as if it were.
    pub fn is_doomed(&self) -> bool {
        self.state == EffectState::Doomed
    }

    /// Deferred effects run after their fence.
    pub fn is_deferred(&self) -> bool {
        self.mode == Mode::Deferred
    }

    /// Its call is or was handed to a worker and nobody knows how it ended.
    pub fn is_running(&self) -> bool {
        self.outcome == Outcome::Unknown && (!self.is_deferred() || self.delivery.is_some())
    }

    /// Deferred, and nobody has reported on its run yet: its fence leaves it in memory.
    pub fn still_to_run(&self) -> bool {
        self.is_deferred() && self.outcome == Outcome::Unknown
    }

    /// It counts as a writer of its keys: it runs or may have run.
    pub fn is_writer(&self) -> bool {
        self.outcome != Outcome::NotRun && (!self.is_deferred() || self.delivery.is_some())
    }

    /// Memory had let it go, and evidence brought it back: its registration is not what it was made from.
    pub fn was_recalled(&self) -> bool {
        !self.records.contains(&self.id.0)
    }

    /// Every vote that it needs is there.
    pub fn is_sealed(&self) -> bool {
        self.missing_votes.is_empty()
    }

    /// Its outcome is known, or can never come.
    pub fn is_settled(&self) -> bool {
        self.outcome != Outcome::Unknown || self.closed
    }

    /// It is doomed, and the world may still show what it wrote (C58).
    pub fn is_dirty(&self) -> bool {
        self.is_doomed()
            && self.step.as_ref().is_some_and(|step| {
                !step.is_discarded()
                    && (step.is_claimed() || !step.is_finished() || !self.is_settled())
            })
    }

    /// Notes a record that memory needs for it.
    pub fn note(&mut self, record: u64) {
        if self.records.last() != Some(&record) {
            self.records.push(record);
        }
    }
}
