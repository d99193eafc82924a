//! Settled effects that evidence or a governed rollback brings back into memory.

use std::collections::{BTreeMap, BTreeSet};

use super::story::{Ownership, Story};
use super::{Fate, Ruling, Turn};
use crate::model::{
    BranchId, EffectId, Event, Key, Mode, Newer, Outcome, Recalled, Registered, RollbackId, Token,
};

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
            let later = self.newer_than(&story, &BTreeSet::new())?;
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
                governed: story.governed,
                position: story.delivered.filter(|_| story.governed),
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
    /// asks for it (I17), and memory has let it go. Those of a set are undone before it.
    fn newer_than(&self, story: &Story, undone: &BTreeSet<EffectId>) -> Ruling<Vec<Newer>> {
        let registered = &story.registered;
        let from = match (registered.mode, story.delivered) {
            (Mode::Eager, _) => story.effect.0,
            (Mode::Deferred, Some(delivered)) if story.governed || !undone.is_empty() => delivered,
            (Mode::Deferred, _) => return Ok(Vec::new()),
        };
        if registered.call.writes.is_empty() {
            return Ok(Vec::new());
        }
        let mut newest: BTreeMap<Key, Newer> = BTreeMap::new();
        let mut writers: Vec<(EffectId, u64, Vec<Key>)> = Vec::new();
        let mut delivered: Vec<(EffectId, u64)> = Vec::new();
        self.history.scan(from + 1, &mut |seq, event| {
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
        writers.retain(|(effect, _, _)| !undone.contains(effect) && *effect != story.effect);
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

    /// Committed effects as they come back for the governed rollback that undoes them.
    pub(super) fn recalled_for(
        &self,
        rollback: RollbackId,
        stories: BTreeMap<EffectId, Story>,
        members: &BTreeSet<EffectId>,
    ) -> Ruling<Vec<Recalled>> {
        let mut effects = Vec::new();
        for mut story in stories.into_values() {
            let token = self.token_of(&mut story)?;
            let later = self.newer_than(&story, members)?;
            let voids = self.through_voids(&mut story.registered.rests_on)?;
            effects.push(Recalled {
                effect: story.effect,
                registered: story.registered,
                inverse: story.inverse,
                outcome: story.outcome,
                generation: story.generation,
                rollback: Some(rollback),
                completed_at: 0,
                late: false,
                token,
                inverse_record: story.inverse_record,
                later,
                voids,
                readers: Vec::new(),
                governed: true,
                position: story.delivered,
            });
        }
        Ok(effects)
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
