//! Doom: one decision against effects, all that rests on them, and the branches that it cuts.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fate, Ruling, Turn};
use crate::model::{
    BranchId, BranchState, Doom, EffectId, EffectState, Event, FenceId, MemberSet, Reconciliation,
    Reply, RollbackId, Stopped, Target, Token, Trigger,
};

/// What a doom would do.
pub(super) struct Sentence {
    /// Branches that are closed by name, and those below them.
    pub(super) closing: Vec<BranchId>,
    /// Live effects that are named, themselves or by their branch.
    pub(super) direct: Vec<EffectId>,
    /// These and all that rests on them.
    pub(super) members: Vec<EffectId>,
    /// The member of which it is known by now that it did not run.
    pub(super) never: Option<EffectId>,
}

impl Turn<'_> {
    /// Who falls if these fall.
    pub(super) fn sentence(&mut self, named: &[EffectId], branches: &[BranchId]) -> Sentence {
        let mut closing: Vec<BranchId> = Vec::new();
        for branch in branches {
            for branch in self.state.family(*branch) {
                let open = self
                    .state
                    .branches
                    .get(&branch)
                    .is_some_and(|branch| branch.state != BranchState::Closed);
                if open && !closing.contains(&branch) {
                    closing.push(branch);
                }
            }
        }
        let mut direct: BTreeSet<EffectId> =
            named.iter().copied().filter(|id| self.state.live_effect(*id).is_some()).collect();
        for branch in &closing {
            direct.extend(self.state.live_of(*branch));
        }
        let direct: Vec<EffectId> = direct.into_iter().collect();
        let members = self.state.cascade(&direct);
        Sentence { closing, direct, members, never: None }
    }

    /// Dooms in one record: members, branches stopped, rollback (I7). The number of the record, or 0
    /// where nothing live was left to doom.
    pub(super) fn doom(
        &mut self,
        named: &[EffectId],
        branches: &[BranchId],
        by: Option<&str>,
        reason: &str,
        trigger: Trigger,
    ) -> u64 {
        let sentence = self.sentence(named, branches);
        self.execute(sentence, by, reason, trigger)
    }

    pub(super) fn execute(
        &mut self,
        sentence: Sentence,
        by: Option<&str>,
        reason: &str,
        trigger: Trigger,
    ) -> u64 {
        self.execute_within(sentence, by, reason, trigger, None)
    }

    /// The same, where the members may join the governed rollback whose approval dooms them.
    pub(super) fn execute_within(
        &mut self,
        sentence: Sentence,
        by: Option<&str>,
        reason: &str,
        trigger: Trigger,
        within: Option<RollbackId>,
    ) -> u64 {
        let Sentence { closing, direct, members, never } = sentence;
        if members.is_empty() {
            for branch in closing {
                self.emit(Event::BranchStopped {
                    branch,
                    cause: None,
                    closed: true,
                    by: by.map(str::to_owned),
                    reason: Some(reason.to_owned()),
                });
            }
            return 0;
        }
        let stopped = self.stopped_by(&members, &closing);
        let intents = self.intents_of(&members);
        let rollback = members
            .iter()
            .filter(|id| never != Some(**id))
            .any(|id| self.state.effects.get(*id).is_some_and(crate::state::Effect::is_writer));
        let seq = self.emit(Event::Doomed(Box::new(Doom {
            members: MemberSet::from(members),
            direct: MemberSet::from(direct),
            stopped,
            by: by.map(str::to_owned),
            reason: reason.to_owned(),
            trigger,
            rollback: rollback && within.is_none(),
            within,
        })));
        for (intent, cause) in intents {
            self.emit(Event::IntentEnded { intent, cause: Some(cause) });
        }
        seq
    }

    /// Branches that own a member, or hold one as handed on, observed or refused.
    fn stopped_by(&self, members: &[EffectId], closing: &[BranchId]) -> Vec<Stopped> {
        let mut stopped: BTreeMap<BranchId, bool> =
            closing.iter().map(|branch| (*branch, true)).collect();
        for effect in members.iter().filter_map(|id| self.state.effects.get(*id)) {
            let holders = effect.held_by.iter().filter(|holder| {
                self.state.branches.get(holder).is_some_and(|branch| {
                    branch.base.contains(&effect.id)
                        || branch.observed.contains(&effect.id)
                        || branch.held.iter().any(|held| held.rests_on().any(|on| on == effect.id))
                })
            });
            for branch in holders.chain(std::iter::once(&effect.branch)) {
                let open = self
                    .state
                    .branches
                    .get(branch)
                    .is_some_and(|branch| branch.state != BranchState::Closed);
                if open {
                    stopped.entry(*branch).or_insert(false);
                }
            }
        }
        stopped
            .into_iter()
            .map(|(branch, closed)| {
                let (observed, base) =
                    if closed { Default::default() } else { self.left_of(branch, members) };
                Stopped { branch, closed, observed, base }
            })
            .collect()
    }

    /// What a branch goes on holding when doomed effects that it holds fall: an observed writer
    /// stands for the earlier writers of its keys that it rests on, and what was handed on for what
    /// else was and is under it.
    fn left_of(&self, id: BranchId, members: &[EffectId]) -> (Vec<EffectId>, Vec<EffectId>) {
        let Some(branch) = self.state.branches.get(&id) else { return Default::default() };
        let falls = |effect: &EffectId| members.binary_search(effect).is_ok();
        let under = |effect: EffectId| -> Vec<EffectId> {
            let all = self.state.graph.closure(&mut crate::graph::Scratch::new(), &[effect.0]);
            let survives = |id: &EffectId| !falls(id) && self.state.live_effect(*id).is_some();
            all.into_iter().map(EffectId).filter(survives).collect()
        };
        let mut observed = BTreeSet::new();
        for (effect, keys) in branch.stands.iter().filter(|(effect, _)| falls(effect)) {
            let same_key = |id: &EffectId| {
                let earlier = self.state.effects.get(*id);
                earlier.is_some_and(|earlier| {
                    earlier.is_writer() && earlier.writes.iter().any(|key| keys.contains(key))
                })
            };
            observed.extend(under(*effect).into_iter().filter(same_key));
        }
        let fallen: Vec<EffectId> =
            branch.handed.iter().copied().filter(|effect| falls(effect)).collect();
        let base = self.state.handed_under(id, &fallen, &|effect| falls(&effect));
        (observed.into_iter().collect(), base)
    }

    fn intents_of(&self, members: &[EffectId]) -> BTreeMap<FenceId, EffectId> {
        let mut intents = BTreeMap::new();
        for effect in members.iter().filter_map(|id| self.state.effects.get(*id)) {
            for intent in &effect.intents {
                intents.entry(*intent).or_insert(effect.id);
            }
        }
        intents
    }

    /// An owner gives work up. Aborting twice makes one decision (section 6).
    pub(super) fn abort(
        &mut self,
        target: Target,
        token: Token,
        reason: &str,
        by: Option<&str>,
    ) -> Ruling<Reply> {
        let owner = match target {
            Target::Branch(branch) => Some(branch),
            Target::Effect(effect) => self.state.effects.get(effect).map(|effect| effect.branch),
        };
        if let Some(owner) = owner {
            self.holds(owner, token, "abort")?;
        }
        self.settle_losers(&[target], by, reason).map(Reply::Reconciliation)
    }

    /// Dooms targets and tells what became of each.
    pub(super) fn settle_losers(
        &mut self,
        targets: &[Target],
        by: Option<&str>,
        reason: &str,
    ) -> Ruling<Reconciliation> {
        let (named, branches) = split(targets);
        let mut answer = self.known_of(&named, &branches)?;
        let sentence = self.sentence(&named, &branches);
        answer.doomed.clone_from(&sentence.direct);
        answer.cascaded = sentence
            .members
            .iter()
            .copied()
            .filter(|id| sentence.direct.binary_search(id).is_err())
            .collect();
        let seq = self.execute(sentence, by, reason, Trigger::Agent);
        if seq > 0 && self.state.rollbacks.contains_key(&RollbackId(seq)) {
            answer.rollback = Some(RollbackId(seq));
            answer.rollbacks.push(RollbackId(seq));
        }
        answer.rollbacks.sort_unstable();
        answer.rollbacks.dedup();
        Ok(answer)
    }

    /// What is already decided of the named: committed effects are kept, earlier rollbacks named.
    pub(super) fn known_of(
        &self,
        named: &[EffectId],
        branches: &[BranchId],
    ) -> Ruling<Reconciliation> {
        let mut answer = Reconciliation::default();
        for id in named {
            match self.state.effects.get(*id) {
                Some(effect) if effect.shown_state() == EffectState::Committed => {
                    answer.kept.push(*id);
                    answer.rollbacks.extend(effect.rollback);
                }
                Some(effect) => answer.rollbacks.extend(effect.rollback),
                None => match self.history.fate(*id)? {
                    Some(Fate::Committed | Fate::Compensated) => answer.kept.push(*id),
                    Some(Fate::Doomed) => answer.rollbacks.extend(self.doom_of(*id)?),
                    _ => {}
                },
            }
        }
        for id in branches {
            let stopped = match self.state.branches.get(id) {
                Some(branch) => {
                    for effect in branch.effects.iter() {
                        if let Some(effect) = self.state.effects.get(effect) {
                            answer.rollbacks.extend(effect.rollback);
                        }
                    }
                    branch.state != BranchState::Open
                }
                None => true,
            };
            if stopped {
                answer.rollbacks.extend(self.dooms_of_branch(*id)?);
            }
            if self.state.live_of(*id).is_empty() {
                answer.kept.extend(self.committed_of(*id)?);
            }
        }
        Ok(answer)
    }

    /// What a branch registered that is committed: the news for whoever comes too late to abort it.
    /// It costs a scan from the branch on, so it is asked only where there is nothing left to doom.
    fn committed_of(&self, id: BranchId) -> Ruling<Vec<EffectId>> {
        let mut registered = Vec::new();
        self.history.scan(id.0 + 1, &mut |seq, event| {
            if matches!(event, Event::Registered(known) if known.branch == id) {
                registered.push(EffectId(seq));
            }
            true
        })?;
        let mut committed = Vec::new();
        for effect in registered {
            let state = self.state.effects.get(effect).map(crate::state::Effect::shown_state);
            let is = match state {
                Some(state) => state == EffectState::Committed,
                None => {
                    matches!(self.history.fate(effect)?, Some(Fate::Committed | Fate::Compensated))
                }
            };
            if is {
                committed.push(effect);
            }
        }
        Ok(committed)
    }

    /// The rollback that held an effect which memory has let go.
    fn doom_of(&self, id: EffectId) -> Ruling<Option<RollbackId>> {
        let mut found = None;
        self.history.scan(id.0 + 1, &mut |seq, event| match event {
            Event::Doomed(doom) if doom.members.contains(id) => {
                found = doom.within.or(doom.rollback.then_some(RollbackId(seq)));
                false
            }
            _ => true,
        })?;
        Ok(found)
    }

    fn dooms_of_branch(&self, id: BranchId) -> Ruling<Vec<RollbackId>> {
        let mut found = Vec::new();
        self.history.scan(id.0 + 1, &mut |seq, event| {
            if let Event::Doomed(doom) = event
                && let Some(rollback) = doom.within.or(doom.rollback.then_some(RollbackId(seq)))
                && doom.stopped.iter().any(|stopped| stopped.branch == id)
            {
                found.push(rollback);
            }
            true
        })?;
        Ok(found)
    }

    /// A branch outlived its lease: what it has not voted for falls (C2).
    pub(super) fn expire_lease(&mut self, id: BranchId) {
        self.emit(Event::LeaseExpired { branch: id });
        let working = self.state.branches.get(&id).filter(|b| b.state != BranchState::Closed);
        let Some(branch) = working else { return };
        let unsealed: Vec<EffectId> =
            branch.effects.iter().filter(|effect| branch.unvoted.contains(*effect)).collect();
        let reason = format!("the lease of branch {:?} ran out", branch.name);
        self.doom(&unsealed, &[], None, &reason, Trigger::Automatic);
        let still_open =
            self.state.branches.get(&id).is_some_and(|branch| branch.state == BranchState::Open);
        if still_open {
            self.emit(Event::BranchStopped {
                branch: id,
                cause: None,
                closed: false,
                by: None,
                reason: Some(reason),
            });
        }
    }
}

/// Targets by kind.
pub(super) fn split(targets: &[Target]) -> (Vec<EffectId>, Vec<BranchId>) {
    let mut effects = Vec::new();
    let mut branches = Vec::new();
    for target in targets {
        match target {
            Target::Effect(effect) => effects.push(*effect),
            Target::Branch(branch) => branches.push(*branch),
        }
    }
    effects.sort_unstable();
    effects.dedup();
    branches.sort_unstable();
    branches.dedup();
    (effects, branches)
}
