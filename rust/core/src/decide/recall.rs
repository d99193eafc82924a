//! Settled effects that evidence brings back: their story is read from the log.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fate, Ruling, Turn};
use crate::model::{
    BranchId, Class, EffectId, Event, Inverse, Key, Mode, Newer, Outcome, Recalled, Registered,
    Report, RollbackId, Token,
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
    inverse: Option<Inverse>,
    inverse_record: u64,
    late: bool,
    generation: u32,
    completed_at: u64,
    claimed: bool,
    /// Evidence that came during a claim; it counts when the claim ends.
    evidence: bool,
    /// A stale holder said that the call ran while the effect was live.
    pub(super) told: bool,
    report: Option<Report>,
    /// Who took over which branch, which branches merged, restores: they decide the token.
    owners: Vec<(u64, Ownership)>,
}

enum Ownership {
    Taken(BranchId),
    Merged(BranchId),
    Restored(u64),
    Delivered,
}

impl Story {
    fn begin(effect: EffectId, registered: Registered) -> Self {
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
            Event::Delivered { effect, .. } if *effect == self.effect => {
                self.owners.push((seq, Ownership::Delivered));
            }
            Event::Doomed(doom) if doom.members.contains(self.effect) => {
                self.doomed = true;
                self.rollback = doom.rollback.then_some(RollbackId(seq));
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
        self.doomed || self.outcome == Outcome::NotRun
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
            let later = self.newer_than(story.effect, &story.registered)?;
            let voids = self.through_voids(&mut story.registered.rests_on)?;
            let mut readers = std::mem::take(&mut story.readers);
            readers.retain(|reader| self.state.effects.contains(*reader));
            readers.sort_unstable();
            readers.dedup();
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
                later,
                voids,
                readers,
            });
        }
        self.emit(Event::EffectsRecalled { effects, reports: reports.into_iter().collect() });
        Ok(())
    }

    /// What a void effect rested on when it was reported as not run: its later looks count, too.
    pub(super) fn void_rested_on(&self, id: EffectId) -> Ruling<Vec<EffectId>> {
        let Some(Event::Registered(registered)) = self.history.event(id.0)? else {
            return Ok(Vec::new());
        };
        let mut rests_on = registered.rests_on;
        self.history.scan(id.0 + 1, &mut |_, event| match event {
            Event::ObservedLate { effect, rests_on: more, .. } if *effect == id => {
                rests_on.extend(more);
                true
            }
            Event::NotRun { effect, observed, .. } if *effect == id => {
                rests_on.extend(observed);
                false
            }
            _ => true,
        })?;
        Ok(rests_on)
    }

    /// Adds what the void effects among these rested on (I1); answers the void ones.
    fn through_voids(&self, rests_on: &mut Vec<EffectId>) -> Ruling<Vec<EffectId>> {
        let mut all: BTreeSet<EffectId> = rests_on.iter().copied().collect();
        let mut voids = BTreeSet::new();
        let mut open = rests_on.clone();
        while let Some(on) = open.pop() {
            let gone = !self.state.effects.contains(on);
            if gone && !voids.contains(&on) && self.history.fate(on)? == Some(Fate::Void) {
                voids.insert(on);
                let under = self.void_rested_on(on)?;
                all.extend(&under);
                open.extend(under);
            }
        }
        *rests_on = all.into_iter().collect();
        Ok(voids.into_iter().collect())
    }

    /// The newest committed writer after an effect of each of its keys: the guard of its inverse
    /// asks for it (I17), and memory has let it go.
    fn newer_than(&self, id: EffectId, registered: &Registered) -> Ruling<Vec<Newer>> {
        let mut newest: BTreeMap<Key, Newer> = BTreeMap::new();
        let mut writers: Vec<(EffectId, u64, Vec<Key>)> = Vec::new();
        if registered.mode == Mode::Deferred || registered.call.writes.is_empty() {
            return Ok(Vec::new());
        }
        let mut delivered: Vec<(EffectId, u64)> = Vec::new();
        self.history.scan(id.0 + 1, &mut |seq, event| {
            match event {
                Event::Registered(later) if later.mode == Mode::Eager => {
                    let mut keys = later.call.writes.clone();
                    keys.retain(|key| registered.call.writes.contains(key));
                    if !keys.is_empty() {
                        writers.push((EffectId(seq), seq, keys));
                    }
                }
                Event::Delivered { effect, .. }
                    if delivered.iter().all(|(known, _)| known != effect) =>
                {
                    delivered.push((*effect, seq));
                }
                _ => {}
            }
            true
        })?;
        for (effect, position) in delivered {
            if let Some(Event::Registered(later)) = self.history.event(effect.0)? {
                let mut keys = later.call.writes;
                keys.retain(|key| registered.call.writes.contains(key));
                writers.push((effect, position, keys));
            }
        }
        writers.sort_unstable_by_key(|(_, position, _)| *position);
        for (effect, position, keys) in writers {
            // One that memory holds is in its key's order of writes.
            let gone = !self.state.effects.contains(effect);
            if gone && self.history.fate(effect)? == Some(Fate::Committed) {
                for key in keys {
                    newest.insert(key.clone(), Newer { key, effect, position });
                }
            }
        }
        Ok(newest.into_values().collect())
    }

    /// The token of an effect that memory has let go.
    pub(super) fn token_of_gone(&self, id: EffectId) -> Ruling<Option<(BranchId, Token)>> {
        let Some(mut story) = self.story(id)? else { return Ok(None) };
        let token = self.token_of(&mut story)?;
        Ok(Some((story.registered.branch, token)))
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
                Ownership::Delivered => token = Token { incarnation, number: *seq },
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
