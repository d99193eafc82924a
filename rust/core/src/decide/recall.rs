//! Settled effects that evidence brings back: their story is read from the log.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ruling, Turn};
use crate::model::{
    BranchId, Class, EffectId, Event, Inverse, Mode, Outcome, Recalled, Registered, Report,
    RollbackId, Token,
};

/// What the log tells of an effect that memory has let go.
pub(super) struct Story {
    pub(super) effect: EffectId,
    pub(super) registered: Registered,
    pub(super) outcome: Outcome,
    pub(super) rollback: Option<RollbackId>,
    /// Effects that came to rest on it directly.
    pub(super) readers: Vec<EffectId>,
    inverse: Option<Inverse>,
    inverse_record: u64,
    late: bool,
    generation: u32,
    completed_at: u64,
    claimed: bool,
    /// Evidence that came during a claim; it counts when the claim ends.
    evidence: bool,
    report: Option<Report>,
    /// Who took over which branch, which branches merged, restores: they decide the token.
    owners: Vec<(u64, Ownership)>,
}

enum Ownership {
    Taken(BranchId),
    Merged(BranchId),
    Restored(u64),
}

impl Story {
    fn begin(effect: EffectId, registered: Registered) -> Self {
        Story {
            effect,
            outcome: Outcome::Unknown,
            rollback: None,
            readers: Vec::new(),
            inverse: registered.call.inverse.clone(),
            inverse_record: effect.0,
            late: false,
            generation: 1,
            completed_at: 0,
            claimed: false,
            evidence: false,
            report: None,
            owners: Vec::new(),
            registered,
        }
    }

    fn hear(&mut self, seq: u64, event: &Event) {
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
            Event::Doomed(doom) if doom.rollback && doom.members.contains(self.effect) => {
                self.rollback = Some(RollbackId(seq));
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

    fn hear_report(&mut self, seq: u64, event: &Event) {
        match event {
            Event::Done { effect, inverse, .. } if *effect == self.effect => {
                self.outcome = Outcome::Done;
                self.take_inverse(seq, inverse.as_ref());
            }
            Event::NotRun { effect, .. } if *effect == self.effect => {
                self.outcome = Outcome::NotRun;
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

impl Turn<'_> {
    /// Reads an effect's story. It costs a scan from the effect's branch on, which only late
    /// reports on settled work pay.
    pub(super) fn story(&self, id: EffectId) -> Ruling<Option<Story>> {
        let Some(Event::Registered(registered)) = self.history.event(id.0)? else {
            return Ok(None);
        };
        let from = registered.branch.0 + 1;
        let mut story = Story::begin(id, *registered);
        self.history.scan(from, &mut |seq, event| {
            story.hear(seq, event);
            true
        })?;
        Ok(Some(story))
    }

    /// Stories of effects older than `id` that memory has let go, that wrote one of the keys, and
    /// whose inverse was finished after `since`.
    pub(super) fn finished_since(
        &self,
        id: EffectId,
        later: &Registered,
        since: u64,
    ) -> Ruling<Vec<Story>> {
        let mut finished = BTreeSet::new();
        if later.mode == Mode::Deferred {
            return Ok(Vec::new());
        }
        self.history.scan(since + 1, &mut |_, event| {
            match event {
                Event::StepCompleted { effect, .. } | Event::StepResolved { effect, .. }
                    if *effect < id =>
                {
                    finished.insert(*effect);
                }
                _ => {}
            }
            true
        })?;
        let mut stories = Vec::new();
        for earlier in finished {
            if self.state.effects.contains(earlier) {
                continue;
            }
            let shares = match self.history.event(earlier.0)? {
                Some(Event::Registered(known)) => {
                    known.mode == Mode::Eager
                        && known.call.writes.iter().any(|key| later.call.writes.contains(key))
                }
                _ => false,
            };
            if !shares {
                continue;
            }
            if let Some(story) = self.story(earlier)?
                && story.completed_at > since
                && story.rollback.is_some()
            {
                stories.push(story);
            }
        }
        Ok(stories)
    }

    /// Brings settled effects back into memory.
    pub(super) fn recall(&mut self, mut stories: Vec<Story>) -> Ruling<()> {
        if stories.is_empty() {
            return Ok(());
        }
        stories.sort_unstable_by_key(|story| story.effect);
        let mut reports = BTreeMap::new();
        let mut effects = Vec::new();
        for mut story in stories {
            let token = self.token_of(&mut story)?;
            if let (Some(rollback), Some(report)) = (story.rollback, story.report) {
                reports.insert(rollback, report);
            }
            let void = story.rollback.is_none();
            effects.push(Recalled {
                effect: story.effect,
                registered: story.registered,
                inverse: story.inverse,
                // Whether a void effect ran is what is in question.
                outcome: if void { Outcome::Unknown } else { story.outcome },
                generation: story.generation,
                rollback: story.rollback,
                completed_at: story.completed_at,
                late: story.late,
                token,
                inverse_record: story.inverse_record,
            });
        }
        self.emit(Event::EffectsRecalled { effects, reports: reports.into_iter().collect() });
        Ok(())
    }

    /// The token of the effect's outcome. As merges hand the effect up, its owner is put right too.
    fn token_of(&self, story: &mut Story) -> Ruling<Token> {
        let mut incarnation = story.registered.token.incarnation;
        let mut token = Token { incarnation, number: story.effect.0 };
        let mut owner = story.registered.branch;
        let mut merged = BTreeSet::new();
        for (seq, change) in &story.owners {
            match change {
                Ownership::Taken(branch) if *branch == owner => {
                    token = Token { incarnation, number: *seq };
                }
                Ownership::Taken(_) => {}
                Ownership::Restored(number) => {
                    incarnation = *number;
                    token = Token { incarnation, number: *seq };
                }
                Ownership::Merged(branch) => {
                    merged.insert(*branch);
                    while merged.contains(&owner)
                        && let Some(Event::BranchCreated { parent: Some(parent), .. }) =
                            self.history.event(owner.0)?
                    {
                        owner = parent;
                    }
                }
            }
        }
        story.registered.branch = owner;
        Ok(token)
    }
}
