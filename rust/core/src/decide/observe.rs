//! Observations: reads as they are recorded, and reads that could not be admitted.

use std::collections::BTreeSet;

use super::{Fate, Ruling, Stop, Turn};
use crate::model::{
    BranchId, EffectId, EffectState, Event, Key, Observation, Outcome, Read, ReadRule, Refusal,
    Reply, Token, Trigger,
};

impl Turn<'_> {
    pub(super) fn observe(
        &mut self,
        id: BranchId,
        token: Token,
        keys: &[Read],
        since: Option<u64>,
        durable: bool,
    ) -> Ruling<Reply> {
        self.holds_open(id, token, "observe")?;
        let rule = self.state.branches.get(&id).map_or(ReadRule::default(), |branch| branch.reads);
        let mut seen = Vec::new();
        let mut refused: Option<Refusal> = None;
        let at = self.state.head;
        for read in keys {
            match self.look_once(id, read, rule, since) {
                Ok((writers, voids)) => seen.push(Observation {
                    key: read.key.clone(),
                    version: read.version,
                    writers,
                    at: since.unwrap_or(at).min(at),
                    voids,
                }),
                Err(Stop::Refused { refusal, .. }) => {
                    self.keep_refused(id, read, rule, &refusal);
                    refused.get_or_insert(refusal);
                }
                Err(unreadable) => return Err(unreadable),
            }
        }
        let lifts = seen.iter().any(|observation| observation.version.is_some())
            && self.state.branches.get(&id).is_some_and(|branch| !branch.held.is_empty());
        if (durable || refused.is_some() || lifts) && !seen.is_empty() {
            self.emit(Event::Observed { branch: id, observations: seen.clone() });
        }
        match refused {
            Some(refusal) => Err(refusal.into()),
            None => Ok(Reply::Observations(seen)),
        }
    }

    fn look_once(
        &self,
        id: BranchId,
        read: &Read,
        rule: ReadRule,
        since: Option<u64>,
    ) -> Ruling<(Vec<EffectId>, Vec<EffectId>)> {
        if let Some(scope) = self.compensating(id) {
            self.out_of_scope(id, read, rule, since, scope)?;
        }
        let writers = self.look(id, read, rule)?;
        let (Some(since), None) = (since, read.version) else { return Ok((writers, Vec::new())) };
        let mut writers: BTreeSet<EffectId> = writers.into_iter().collect();
        let under = self.seen_voided(&read.key, since, EffectId(0), &mut writers)?;
        if let Some(writer) = self.saw_doomed(&read.key, since)?.or(under) {
            return Err(self.saw_dirty(&read.key, writer).into());
        }
        let voids = self.voided_since(&read.key, since);
        Ok((writers.into_iter().collect(), voids))
    }

    /// A branch in compensation reads nothing that may still fall (C24). What has fallen already is
    /// told first: the branch may have seen it, and stops.
    fn out_of_scope(
        &self,
        id: BranchId,
        read: &Read,
        rule: ReadRule,
        since: Option<u64>,
        scope: Refusal,
    ) -> Ruling<()> {
        if let Some(version) = read.version {
            self.look(id, read, rule)?;
            let live = self.state.live_effect(EffectId(version)).is_some();
            return if live { Err(scope.into()) } else { Ok(()) };
        }
        let live = self.state.live_writers(&read.key);
        if live.is_empty() || !self.state.dirty_writers(&read.key).is_empty() {
            return Ok(());
        }
        if let Some(since) = since {
            let under =
                self.seen_voided(&read.key, since, EffectId(0), &mut live.into_iter().collect())?;
            if let Some(writer) = self.saw_doomed(&read.key, since)?.or(under) {
                return Err(self.saw_dirty(&read.key, writer).into());
            }
        }
        Err(scope.into())
    }

    fn saw_dirty(&self, key: &Key, writer: EffectId) -> Refusal {
        let rollback = self.state.effects.get(writer).and_then(|effect| effect.rollback);
        Refusal::DirtyKey { key: key.clone(), writers: vec![writer], rollback }
    }

    /// A refused observation has already happened in the world: the branch is held by what it may
    /// have seen, and stopped at once where that is doomed (C19, C20).
    fn keep_refused(&mut self, id: BranchId, read: &Read, rule: ReadRule, refusal: &Refusal) {
        let cause = match refusal {
            Refusal::DirtyKey { writers, .. } => writers.first().copied(),
            Refusal::DoomedDependency { dependency, .. } => Some(*dependency),
            _ => None,
        };
        if cause.is_some() {
            self.emit(Event::BranchStopped {
                branch: id,
                cause,
                closed: false,
                by: None,
                reason: None,
            });
            return;
        }
        let (writers, rule) = match refusal {
            Refusal::UncommittedKey { .. } if read.version.is_some() => {
                (read.version.map(EffectId).into_iter().collect(), rule)
            }
            Refusal::UncommittedKey { .. } => (self.state.live_writers(&read.key), rule),
            Refusal::CompensationScope { .. } => {
                (self.state.live_writers(&read.key), ReadRule::Committed)
            }
            _ => return,
        };
        let mut writers = writers;
        writers.sort_unstable();
        self.emit(Event::ObservationRefused { branch: id, key: read.key.clone(), writers, rule });
    }

    /// What holds a branch: a read that its rule still keeps out, oldest first (C20).
    pub(super) fn held(&self, id: BranchId) -> Option<Refusal> {
        let branch = self.state.branches.get(&id)?;
        for held in &branch.held {
            let writers: Vec<EffectId> = held.writers.iter().copied().collect();
            let early = self.not_admitted(id, &writers, held.rule);
            if !early.is_empty() {
                return Some(Refusal::UncommittedKey { key: held.key.clone(), writers: early });
            }
        }
        None
    }

    /// Observations that rode along, with the writers that are still live. What became void since
    /// stands for what it rested on; what was doomed since stops the branch.
    pub(super) fn renew(
        &mut self,
        id: BranchId,
        observed: &[Observation],
    ) -> Ruling<Vec<Observation>> {
        let mut renewed = Vec::new();
        for observation in observed {
            let mut writers = BTreeSet::new();
            let mut voids: BTreeSet<EffectId> = observation.voids.iter().copied().collect();
            let mut open = observation.writers.clone();
            while let Some(writer) = open.pop() {
                match self.state.effects.get(writer).map(|effect| effect.state) {
                    Some(EffectState::Live) => {
                        writers.insert(writer);
                    }
                    Some(EffectState::Doomed) => return self.stop_reader(id, writer),
                    Some(_) => {}
                    None => match self.history.fate(writer)? {
                        Some(Fate::Doomed | Fate::Compensated) => {
                            return self.stop_reader(id, writer);
                        }
                        Some(Fate::Void) if observation.version.is_some() => {
                            return self.stop_reader(id, writer);
                        }
                        Some(Fate::Void) => {
                            voids.insert(writer);
                            open.extend(self.void_rested_on(writer)?);
                        }
                        _ => {}
                    },
                }
            }
            renewed.push(Observation {
                writers: writers.into_iter().collect(),
                voids: voids.into_iter().collect(),
                ..observation.clone()
            });
        }
        Ok(renewed)
    }

    fn stop_reader<T>(&mut self, id: BranchId, cause: EffectId) -> Ruling<T> {
        self.emit(Event::BranchStopped {
            branch: id,
            cause: Some(cause),
            closed: false,
            by: None,
            reason: None,
        });
        let branch = self.branch_name(id)?;
        Err(Refusal::DoomedBranch { branch, cause: Some(cause) }.into())
    }

    /// A running call has read more keys. It takes the edges whatever the branch's rule; one that
    /// saw a doomed value is doomed with all that rests on it (C22, C23).
    pub(super) fn observe_late(
        &mut self,
        id: EffectId,
        token: Token,
        keys: &[Read],
    ) -> Ruling<Reply> {
        self.holds_effect(id, token, "observe")?;
        let settled = |state| Refusal::AlreadySettled { reference: id.0, state };
        let Some(effect) = self.state.effects.get(id) else {
            return Err(settled("settled").into());
        };
        if !effect.is_live() {
            return Err(settled(super::outcome::state_name(effect.state)).into());
        }
        if effect.outcome != Outcome::Unknown {
            return Err(settled("done").into());
        }
        let branch = effect.branch;
        let mut observations = Vec::new();
        let mut saw: Option<(Refusal, EffectId)> = None;
        for read in keys {
            match self.look_late(id, branch, read)? {
                Ok(writers) => observations.push(Observation {
                    key: read.key.clone(),
                    version: read.version,
                    writers,
                    at: id.0,
                    voids: Vec::new(),
                }),
                Err((refusal, cause)) => {
                    saw.get_or_insert((refusal, cause));
                }
            }
        }
        let mut rests_on: BTreeSet<EffectId> =
            observations.iter().flat_map(|seen| seen.writers.iter().copied()).collect();
        for read in keys.iter().filter(|read| read.version.is_none()) {
            if let Some(cause) = self.seen_voided(&read.key, id.0, id, &mut rests_on)? {
                saw.get_or_insert_with(|| (self.saw_dirty(&read.key, cause), cause));
            }
        }
        // It falls with the writers that fell meanwhile, and is undone before them (I13).
        for entry in keys.iter().filter_map(|read| self.state.keys.get(&read.key)) {
            rests_on.extend(self.doomed_since(entry, id));
        }
        let rests_on = rests_on.into_iter().collect();
        self.emit(Event::ObservedLate { effect: id, observations: observations.clone(), rests_on });
        if let Some((refusal, cause)) = saw {
            self.doom(
                &[id],
                &[],
                None,
                &format!("it read a value of effect {cause}, which is doomed"),
                Trigger::Automatic,
            );
            return Err(refusal.into());
        }
        Ok(Reply::Observations(observations))
    }

    /// What a call that runs since its registration may have seen of a key, or the doomed writer.
    #[allow(clippy::type_complexity)] // Two kinds of no: one ends the verb, one dooms the effect.
    fn look_late(
        &self,
        id: EffectId,
        branch: BranchId,
        read: &Read,
    ) -> Ruling<Result<Vec<EffectId>, (Refusal, EffectId)>> {
        if read.version.is_none()
            && let Some(writer) = self.saw_doomed(&read.key, id.0)?
        {
            return Ok(Err((self.saw_dirty(&read.key, writer), writer)));
        }
        match self.look(branch, read, ReadRule::Speculative) {
            Ok(writers) if writers.contains(&id) => {
                // It does not observe its own write, and so sees whatever that write covers.
                let mut others = self.state.live_writers(&read.key);
                others.retain(|writer| *writer != id);
                others.sort_unstable();
                let mut scratch = crate::graph::Scratch::new();
                let raw = crate::state::raw(&others);
                Ok(Ok(crate::state::ids(self.state.graph.uncovered(&mut scratch, &raw))))
            }
            Ok(writers) => Ok(Ok(writers)),
            Err(Stop::Refused {
                refusal: Refusal::DoomedDependency { dependency, key }, ..
            }) => Ok(Err((Refusal::DoomedDependency { dependency, key }, dependency))),
            Err(stop) => Err(stop),
        }
    }
}
