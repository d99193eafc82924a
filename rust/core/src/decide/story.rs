//! The story of one settled effect, read from the log.

use std::collections::BTreeMap;

use super::{History, HistoryError};
use crate::model::{
    BranchId, Class, EffectId, Event, Inverse, Mode, Outcome, Registered, Report, RollbackId,
    Started,
};

/// What the log tells of an effect that memory has let go.
#[allow(clippy::struct_excessive_bools)] // Each is a fact that the log tells on its own.
pub(super) struct Story {
    pub(super) effect: EffectId,
    pub(super) registered: Registered,
    pub(super) outcome: Outcome,
    pub(super) rollback: Option<RollbackId>,
    doomed: bool,
    /// Effects that came to rest on it directly.
    pub(super) readers: Vec<EffectId>,
    pub(super) inverse: Option<Inverse>,
    pub(super) inverse_record: u64,
    pub(super) late: bool,
    pub(super) generation: u32,
    pub(super) completed_at: u64,
    claimed: bool,
    /// Evidence that came during a claim; it counts when the claim ends.
    evidence: bool,
    /// A stale holder said that the call ran while the effect was live.
    pub(super) told: bool,
    pub(super) report: Option<Report>,
    /// A governed rollback undoes it.
    pub(super) governed: bool,
    /// The record that handed it out first, of a deferred one.
    pub(super) delivered: Option<u64>,
    /// Who took over which branch, which branches merged, restores: they decide the token.
    pub(super) owners: Vec<(u64, Ownership)>,
}

/// A change of who holds the token of an effect's outcome.
pub(super) enum Ownership {
    Taken(BranchId),
    Merged(BranchId),
    Restored(u64),
    Delivered,
}

impl Story {
    pub(super) fn begin(effect: EffectId, registered: Registered) -> Self {
        Story {
            effect,
            outcome: Outcome::Unknown,
            rollback: None,
            doomed: false,
            readers: Vec::new(),
            inverse: registered.call.inverse.clone(),
            inverse_record: effect.0,
            late: false,
            generation: 1,
            completed_at: 0,
            claimed: false,
            evidence: false,
            told: false,
            report: None,
            governed: false,
            delivered: None,
            owners: Vec::new(),
            registered,
        }
    }

    pub(super) fn hear(&mut self, seq: u64, event: &Event) {
        match event {
            Event::BranchMerged { branch } => {
                self.owners.push((seq, Ownership::Merged(*branch)));
                return;
            }
            _ if seq <= self.effect.0 => return,
            Event::BranchTaken { branch, .. } => self.owners.push((seq, Ownership::Taken(*branch))),
            Event::Restored { incarnation } => {
                self.owners.push((seq, Ownership::Restored(*incarnation)));
            }
            Event::Delivered { effect, .. } if *effect == self.effect => {
                self.owners.push((seq, Ownership::Delivered));
                self.delivered.get_or_insert(seq);
            }
            Event::Doomed(doom) if doom.members.contains(self.effect) => {
                self.doomed = true;
                self.rollback = doom.within.or(doom.rollback.then_some(RollbackId(seq)));
            }
            Event::RollbackStarted(started) if self.is_governed_by(started) => {
                self.governed = true;
                self.rollback = Some(started.rollback);
            }
            Event::RollbackFinished { rollback, report } if self.rollback == Some(*rollback) => {
                self.report = Some(report.clone());
            }
            Event::Registered(other) if other.rests_on.contains(&self.effect) => {
                self.readers.push(EffectId(seq));
            }
            Event::ObservedLate { effect, rests_on, .. } if rests_on.contains(&self.effect) => {
                self.readers.push(*effect);
            }
            Event::Done { effect, rests_on, .. } if rests_on.contains(&self.effect) => {
                self.readers.push(*effect);
            }
            _ => {}
        }
        self.hear_report(seq, event);
        self.hear_step(seq, event);
    }

    fn is_governed_by(&self, started: &Started) -> bool {
        started.held.contains(self.effect)
            || started.effects.iter().any(|recalled| recalled.effect == self.effect)
    }

    /// Its class, which exposure may have raised since.
    pub(super) fn class(&self) -> Class {
        self.registered.class
    }

    /// Its inverse as last known.
    pub(super) fn inverse(&self) -> Option<&Inverse> {
        self.inverse.as_ref()
    }

    /// Its place in the order of writes.
    pub(super) fn position(&self) -> u64 {
        self.delivered.unwrap_or(self.effect.0)
    }

    /// It is known to have run, or it may have.
    pub(super) fn may_have_run(&self) -> bool {
        self.outcome != Outcome::NotRun
            && (self.registered.mode == Mode::Eager || self.delivered.is_some())
    }

    fn hear_report(&mut self, seq: u64, event: &Event) {
        match event {
            Event::Done { effect, inverse, rests_on, .. } if *effect == self.effect => {
                self.registered.rests_on.extend(rests_on);
                self.outcome = Outcome::Done;
                self.take_inverse(seq, inverse.as_ref());
            }
            Event::ObservedLate { effect, rests_on, .. } if *effect == self.effect => {
                self.registered.rests_on.extend(rests_on);
            }
            Event::NotRun { effect, observed, .. } if *effect == self.effect => {
                self.registered.rests_on.extend(observed);
                self.outcome = Outcome::NotRun;
            }
            // On a live effect it is a note and no outcome (C29).
            Event::Evidence { effect, outcome, .. }
                if *effect == self.effect && !self.is_decided() =>
            {
                self.told |= *outcome == Outcome::Done;
            }
            Event::Evidence { effect, outcome, inverse, .. } if *effect == self.effect => {
                self.outcome = *outcome;
                self.late |= *outcome == Outcome::Done;
                self.take_inverse(seq, inverse.as_ref());
            }
            Event::Exposed { effect, .. } if *effect == self.effect => {
                self.registered.class = self.registered.class.max(Class::Partial);
            }
            _ => {}
        }
    }

    /// It is doomed or void.
    fn is_decided(&self) -> bool {
        self.doomed || self.governed || self.outcome == Outcome::NotRun
    }

    fn take_inverse(&mut self, seq: u64, inverse: Option<&Inverse>) {
        if let Some(inverse) = inverse {
            self.inverse = Some(inverse.clone());
            self.inverse_record = seq;
        }
    }

    fn hear_step(&mut self, seq: u64, event: &Event) {
        match event {
            Event::StepClaimed { effect, .. } if *effect == self.effect => self.claimed = true,
            Event::StepCompleted { effect, .. } if *effect == self.effect => {
                self.completed_at = seq;
                self.claim_ended();
            }
            Event::StepResolved { effect, .. } if *effect == self.effect => {
                self.completed_at = seq;
            }
            Event::StepFailed { effect, .. }
            | Event::StepReleased { effect, .. }
            | Event::StepDiscarded { effect }
                if *effect == self.effect =>
            {
                self.completed_at = 0;
                self.claim_ended();
            }
            Event::StepDue { effect, .. } if *effect == self.effect => {
                if self.claimed {
                    self.evidence = true;
                } else {
                    self.generation += 1;
                    self.completed_at = 0;
                }
            }
            _ => {}
        }
    }

    fn claim_ended(&mut self) {
        if self.claimed && self.evidence {
            self.generation += 1;
            self.completed_at = 0;
        }
        self.claimed = false;
        self.evidence = false;
    }
}

/// The stories of effects, in one pass over the log from the oldest branch of them on.
pub(super) fn stories_of(
    history: &dyn History,
    ids: Vec<EffectId>,
) -> Result<BTreeMap<EffectId, Story>, HistoryError> {
    let mut stories = BTreeMap::new();
    for id in ids {
        if let Some(Event::Registered(registered)) = history.event(id.0)? {
            stories.insert(id, Story::begin(id, *registered));
        }
    }
    let Some(from) = stories.values().map(|story| story.registered.branch.0).min() else {
        return Ok(stories);
    };
    history.scan(from + 1, &mut |seq, event| {
        match about(event) {
            About::Nothing => {}
            About::One(id) => {
                if let Some(story) = stories.get_mut(&id) {
                    story.hear(seq, event);
                }
            }
            About::Many => stories.values_mut().for_each(|story| story.hear(seq, event)),
        }
        true
    })?;
    Ok(stories)
}

/// Whose story an event may belong to.
enum About {
    Nothing,
    One(EffectId),
    Many,
}

fn about(event: &Event) -> About {
    match event {
        Event::Delivered { effect, .. }
        | Event::Done { effect, .. }
        | Event::ObservedLate { effect, .. }
        | Event::NotRun { effect, .. }
        | Event::Evidence { effect, .. }
        | Event::Exposed { effect, .. }
        | Event::StepClaimed { effect, .. }
        | Event::StepCompleted { effect, .. }
        | Event::StepResolved { effect, .. }
        | Event::StepFailed { effect, .. }
        | Event::StepReleased { effect, .. }
        | Event::StepDiscarded { effect }
        | Event::StepDue { effect, .. } => About::One(*effect),
        Event::BranchMerged { .. } | Event::BranchTaken { .. } | Event::Restored { .. } => {
            About::Many
        }
        // Committed effects are no member of any other rollback, and their readers are not asked for.
        _ => About::Nothing,
    }
}
