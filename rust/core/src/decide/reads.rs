//! What a read of a key may have seen: the heart of I12.

use std::collections::BTreeSet;

use super::{Fate, Ruling, Stop, Turn};
use crate::model::{BranchId, EffectId, EffectState, Event, Key, Name, Read, ReadRule, Refusal};

impl Turn<'_> {
    /// The live writers that a read by this branch rests on, or why it is not admitted (C7).
    pub(super) fn look(
        &self,
        branch: BranchId,
        read: &Read,
        rule: ReadRule,
    ) -> Ruling<Vec<EffectId>> {
        match read.version {
            Some(0) => Ok(Vec::new()),
            Some(version) => self.look_at_version(branch, &read.key, EffectId(version), rule),
            None => self.look_at_world(branch, &read.key, rule),
        }
    }

    fn look_at_world(&self, branch: BranchId, key: &Key, rule: ReadRule) -> Ruling<Vec<EffectId>> {
        if let Some(refusal) = self.dirty(key) {
            return Err(refusal.into());
        }
        let Some(entry) = self.state.keys.get(key) else { return Ok(Vec::new()) };
        if rule != ReadRule::Speculative {
            let early = self.not_admitted(branch, &self.state.live_writers(key), rule);
            if !early.is_empty() {
                return Err(Refusal::UncommittedKey { key: key.clone(), writers: early }.into());
            }
        }
        let mut writers = entry.frontier.clone();
        writers.sort_unstable();
        Ok(writers)
    }

    fn look_at_version(
        &self,
        branch: BranchId,
        key: &Key,
        version: EffectId,
        rule: ReadRule,
    ) -> Ruling<Vec<EffectId>> {
        let missing = || Refusal::NotFound {
            reference: format!("version {version} of key {key:?}"),
            name: Name::Id(version.0),
        };
        let doomed = || Refusal::DoomedDependency { dependency: version, key: Some(key.clone()) };
        if let Some(effect) = self.state.effects.get(version) {
            if !effect.writes.contains(key) {
                return Err(missing().into());
            }
            return match effect.state {
                EffectState::Live => {
                    let early = self.not_admitted(branch, &[version], rule);
                    if early.is_empty() {
                        Ok(vec![version])
                    } else {
                        Err(Refusal::UncommittedKey { key: key.clone(), writers: early }.into())
                    }
                }
                EffectState::Committed => Ok(Vec::new()),
                EffectState::Doomed | EffectState::Void => Err(doomed().into()),
            };
        }
        match self.history.event(version.0)? {
            Some(Event::Registered(registered)) if registered.call.writes.contains(key) => {}
            _ => return Err(missing().into()),
        }
        match self.history.fate(version)? {
            Some(Fate::Committed) => Ok(Vec::new()),
            Some(Fate::Doomed | Fate::Compensated | Fate::Void) => Err(doomed().into()),
            None => Err(missing().into()),
        }
    }

    /// The refusal of a key that may show a doomed value.
    pub(super) fn dirty(&self, key: &Key) -> Option<Refusal> {
        let writers = self.state.dirty_writers(key);
        let first = *writers.first()?;
        let rollback = self.state.effects.get(first).and_then(|effect| effect.rollback);
        Some(Refusal::DirtyKey { key: key.clone(), writers, rollback })
    }

    /// Writers outside of the branch and those above it that its read rule keeps out.
    pub(super) fn not_admitted(
        &self,
        branch: BranchId,
        writers: &[EffectId],
        rule: ReadRule,
    ) -> Vec<EffectId> {
        let lineage = self.state.lineage(branch);
        writers
            .iter()
            .copied()
            .filter(|writer| {
                let Some(effect) = self.state.live_effect(*writer) else { return false };
                if lineage.contains(&effect.branch) {
                    return false;
                }
                match rule {
                    ReadRule::Speculative => false,
                    ReadRule::Sealed => !effect.is_sealed(),
                    ReadRule::Committed => true,
                }
            })
            .collect()
    }

    /// The writer whose doomed value a reader may have seen at any moment after `since` (C22).
    pub(super) fn saw_doomed(&self, key: &Key, since: u64) -> Ruling<Option<EffectId>> {
        if let Some(writer) = self.state.dirty_writers(key).first() {
            return Ok(Some(*writer));
        }
        let trace = self.state.keys.get(key).and_then(|entry| entry.trace.as_ref());
        if let Some(trace) = trace.filter(|trace| trace.dirty_at > since) {
            return Ok(Some(trace.dirty_by));
        }
        if since >= self.state.keys.horizon {
            return Ok(None);
        }
        self.saw_doomed_long_ago(key, since)
    }

    /// Writers of a key that became void after `since`, ascending.
    pub(super) fn voided_since(&self, key: &Key, since: u64) -> Vec<EffectId> {
        let trace = self.state.keys.get(key).and_then(|entry| entry.trace.as_ref());
        let voided = trace.into_iter().flat_map(|trace| &trace.voided);
        let mut found: Vec<EffectId> =
            voided.filter(|(_, at)| *at > since).map(|(void, _)| *void).collect();
        found.sort_unstable();
        found
    }

    /// A writer that became void after `since` may have been seen while it counted as live: the reader
    /// rests on what it rested on. Answers the doomed one among these, which dooms the reader (C22).
    pub(super) fn seen_voided(
        &self,
        key: &Key,
        since: u64,
        reader: EffectId,
        rests_on: &mut BTreeSet<EffectId>,
    ) -> Ruling<Option<EffectId>> {
        let mut cause = None;
        for void in self.voided_since(key, since).into_iter().filter(|void| *void != reader) {
            match self.after_void(void, rests_on) {
                Err(Stop::Refused {
                    refusal: Refusal::DoomedDependency { dependency, .. },
                    ..
                }) => cause = cause.or(Some(dependency)),
                other => other?,
            }
        }
        rests_on.remove(&reader);
        Ok(cause)
    }

    /// The same from the log, for a look that began before what memory keeps.
    fn saw_doomed_long_ago(&self, key: &Key, since: u64) -> Ruling<Option<EffectId>> {
        let mut doomed: Vec<EffectId> = Vec::new();
        self.history.scan(since + 1, &mut |_, event| {
            if let Event::Doomed(doom) = event {
                doomed.extend(doom.members.iter());
            }
            true
        })?;
        for effect in doomed {
            if let Some(Event::Registered(registered)) = self.history.event(effect.0)?
                && registered.call.writes.contains(key)
            {
                return Ok(Some(effect));
            }
        }
        Ok(None)
    }

    /// The newest writer of a key; doomed ones count until they are undone, void ones never. 0 is
    /// "before the store".
    pub(super) fn newest_version(&self, key: &Key, at_least: u64) -> Ruling<u64> {
        let mut newest = (0, 0);
        if let Some(entry) = self.state.keys.get(key) {
            for writer in &entry.writers {
                if let Some(effect) = self.state.effects.get(*writer)
                    && (!effect.is_doomed() || effect.is_dirty())
                {
                    newest = newest.max((effect.position, effect.id.0));
                }
            }
            if let Some(later) = &entry.later {
                newest = newest.max((later.position, later.effect.0));
            }
        }
        let from = at_least.max(newest.0) + 1;
        let mut later: Vec<u64> = Vec::new();
        self.history.scan(from, &mut |seq, event| {
            match event {
                Event::Registered(registered)
                    if registered.mode == crate::model::Mode::Eager
                        && registered.call.writes.contains(key) =>
                {
                    later.push(seq);
                }
                _ => {}
            }
            true
        })?;
        for version in later.into_iter().rev() {
            let id = EffectId(version);
            let counts = match self.state.effects.get(id) {
                Some(effect) => !effect.is_doomed() || effect.is_dirty(),
                None => self.history.fate(id)? == Some(Fate::Committed),
            };
            if counts {
                return Ok(version);
            }
        }
        Ok(newest.1.max(at_least))
    }
}
