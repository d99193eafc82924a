//! Which records belong to the story of an effect, branch, rollback, fence or approval.
//!
//! A record names one thing, mostly. So a story also follows what it has met: the answers to its
//! approvals, who took note of its alerts, what became of its commits, of a rollback the steps of each
//! of its members, and of a branch the outcomes and decisions of its effects.

use std::collections::BTreeSet;

use super::story::{holds, reference};
use crate::model::{EffectId, Event, MemberSet, Started};

/// The story that is being gathered, from its first record on.
pub(super) struct Tale {
    about: u64,
    /// Approvals, alerts and waiting commits of the story.
    met: BTreeSet<u64>,
    /// What a branch registered.
    registered: BTreeSet<EffectId>,
    /// What a rollback undoes.
    undone: Vec<MemberSet>,
    /// Committed members that a governed rollback undoes.
    started: Vec<Started>,
}

impl Tale {
    /// The story of what a record began.
    pub(super) fn of(about: u64) -> Self {
        Tale {
            about,
            met: BTreeSet::new(),
            registered: BTreeSet::new(),
            undone: Vec::new(),
            started: Vec::new(),
        }
    }

    /// Whether the next record belongs to it.
    pub(super) fn hears(&mut self, seq: u64, event: &Event) -> bool {
        let told = seq == self.about || concerns(event, self.about) || self.follows(event);
        if told {
            self.learn(seq, event);
        }
        told
    }

    fn follows(&self, event: &Event) -> bool {
        match event {
            Event::ApprovalAnswered { .. }
            | Event::ApprovalStale { .. }
            | Event::AlertAcknowledged { .. }
            | Event::IntentEnded { .. } => self.met.contains(&reference(0, event)),
            Event::Fenced { intent, members, .. } => {
                intent.is_some_and(|intent| self.met.contains(&intent.0)) || self.registers(members)
            }
            Event::Intended { targets: members, .. } | Event::Voted { members, .. } => {
                self.registers(members)
            }
            Event::Doomed(doom) => self.registers(&doom.members),
            Event::Alerted { reference, .. } => self.undoes(EffectId(*reference)),
            Event::StepClaimed { effect, .. }
            | Event::StepCompleted { effect, .. }
            | Event::StepFailed { effect, .. }
            | Event::StepReleased { effect, .. }
            | Event::StepDiscarded { effect }
            | Event::StepRetried { effect, .. }
            | Event::StepResolved { effect, .. }
            | Event::StepDue { effect, .. } => self.undoes(*effect),
            Event::Done { effect, .. }
            | Event::NotRun { effect, .. }
            | Event::Closed { effect, .. }
            | Event::Evidence { effect, .. } => {
                self.undoes(*effect) || self.registered.contains(effect)
            }
            Event::ObservedLate { effect, .. }
            | Event::Exposed { effect, .. }
            | Event::Delivered { effect, .. } => self.registered.contains(effect),
            _ => false,
        }
    }

    /// Whether one of the branch's effects is among these.
    fn registers(&self, members: &MemberSet) -> bool {
        self.registered.iter().any(|effect| members.contains(*effect))
    }

    fn undoes(&self, effect: EffectId) -> bool {
        self.undone.iter().any(|members| members.contains(effect))
            || self.started.iter().any(|started| holds(started, effect))
    }

    fn learn(&mut self, seq: u64, event: &Event) {
        match event {
            Event::ApprovalRequested { .. } | Event::Alerted { .. } | Event::Intended { .. } => {
                self.met.insert(seq);
            }
            Event::Registered(registered) if registered.branch.0 == self.about => {
                self.registered.insert(EffectId(seq));
            }
            Event::Doomed(doom)
                if doom.rollback && doom.within.map_or(seq, |within| within.0) == self.about =>
            {
                self.undone.push(doom.members.clone());
            }
            Event::RollbackStarted(started) if started.rollback.0 == self.about => {
                self.started.push((**started).clone());
            }
            _ => {}
        }
    }
}

/// Whether a record says by itself that it belongs to the story of an effect, branch, rollback, fence or approval.
fn concerns(event: &Event, about: u64) -> bool {
    let effect = EffectId(about);
    if reference(0, event) == about {
        return true;
    }
    match event {
        Event::Registered(registered) => {
            registered.branch.0 == about || registered.rests_on.contains(&effect)
        }
        Event::Voted { members, .. }
        | Event::Fenced { members, .. }
        | Event::Intended { targets: members, .. } => members.contains(effect),
        Event::Doomed(doom) => {
            doom.members.contains(effect)
                || doom.stopped.iter().any(|stopped| stopped.branch.0 == about)
                || doom.within.is_some_and(|rollback| rollback.0 == about)
        }
        Event::RollbackRequested(request) => {
            request.committed.contains(effect) || request.live.contains(effect)
        }
        Event::RollbackStarted(started) => holds(started, effect),
        Event::StepDue { cause, .. } => cause.0 == about,
        Event::BreakSignalled(signal) => signal.branch.0 == about,
        Event::ArtifactCreated { compensates_for, .. } => {
            compensates_for.is_some_and(|primary| primary.0 == about)
        }
        Event::ArtifactFailed { run: Some(run), .. } | Event::ArtifactRan { run, .. } => {
            run.0 == about
        }
        Event::ApprovalRequested { subject, .. } => match subject {
            crate::model::Subject::Rollback(rollback) => rollback.0 == about,
            crate::model::Subject::Effect(subject) => subject.0 == about,
            crate::model::Subject::Early { branch, .. } => branch.0 == about,
        },
        Event::EffectsRecalled { effects, reports } => {
            effects.iter().any(|recalled| recalled.effect == effect)
                || reports.iter().any(|(rollback, _)| rollback.0 == about)
        }
        _ => false,
    }
}
