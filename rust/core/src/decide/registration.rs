//! One registration: what it rests on, and every rule that may refuse it (C5 gives the order).

use std::collections::BTreeSet;

use super::register::Batch;
use super::{Fate, Ruling, Turn};
use crate::model::{
    After, ApprovalState, BranchId, Class, EffectId, EffectState, Event, Follows, Key, Mode, Name,
    Observation, Overwrite, Placed, ReadRule, Refusal, Registered, Registration, Subject,
};

impl Turn<'_> {
    pub(super) fn admit_call(
        &mut self,
        batch: &Batch,
        placed: &Placed,
        riding: Vec<Observation>,
    ) -> Ruling<Registered> {
        let call = &placed.call;
        self.call_words(call)?;
        let class = self.class_of(call)?;
        self.approved_code(call.inverse.as_ref())?;
        let mut rests_on: BTreeSet<EffectId> = BTreeSet::new();
        let (program, named_deferred) = self.followed(batch, placed, &mut rests_on)?;
        let mode = mode_of(call, class, named_deferred);
        self.early_start(placed, class, mode)?;
        self.observed_by(batch, placed.branch, &mut rests_on);
        self.read_keys(batch, placed, mode, &mut rests_on)?;
        self.write_keys(batch, placed, mode, &mut rests_on)?;
        let rests_on: Vec<EffectId> = rests_on.into_iter().collect();
        self.within_limits(batch, placed, mode, &rests_on)?;
        let inverse = call.inverse.as_ref();
        let deadline_ms = inverse.and_then(|inverse| {
            inverse.deadline_ms.or_else(|| {
                inverse.deadline_after_ms.map(|after| self.now_ms.saturating_add(after))
            })
        });
        let call = Registration { follows: by_id(batch, &call.follows), ..call.clone() };
        Ok(Registered {
            branch: placed.branch,
            token: placed.token,
            call,
            rests_on,
            program,
            class,
            mode,
            observed: riding,
            deadline_ms,
        })
    }

    /// Without an inverse an effect must say that it cannot be undone (I3).
    fn class_of(&self, call: &Registration) -> Ruling<Class> {
        let limited = call.inverse.as_ref().is_some_and(|inverse| inverse.limitation.is_some());
        let least = if limited { Class::Partial } else { Class::Full };
        let class = call.class.unwrap_or(least).max(least);
        let missing = call.inverse.is_none() && class != Class::Irreversible;
        if missing && self.state.policy.require_inverse {
            return Err(Refusal::InverseRequired { tool: call.tool.clone() }.into());
        }
        Ok(class)
    }

    /// An irreversible call starts before its fence only under an approval of exactly this call.
    fn early_start(&self, placed: &Placed, class: Class, mode: Mode) -> Ruling<()> {
        let call = &placed.call;
        if class != Class::Irreversible || mode == Mode::Deferred {
            if call.approval.is_none() {
                return Ok(());
            }
            let reason = "only an irreversible call that starts before its fence takes an approval";
            return Err(Refusal::Options { option: "approval", reason: reason.into() }.into());
        }
        let tool = call.tool.clone();
        let Some(id) = call.approval else {
            return Err(Refusal::IrreversibleBeforeFence { tool }.into());
        };
        let closed = |state| Refusal::ApprovalClosed { approval: id, state, successor: None };
        let Some(approval) = self.state.approvals.get(&id) else {
            return match self.history.event(id.0)? {
                Some(Event::ApprovalRequested { .. }) => Err(closed("used or denied").into()),
                _ => Err(Refusal::no_such("approval", id.0).into()),
            };
        };
        let same = matches!(
            &approval.info.subject,
            Subject::Early { branch, tool, args, idempotency_key }
                if *branch == placed.branch
                    && *tool == call.tool
                    && *args == call.args
                    && (idempotency_key.is_none() || *idempotency_key == call.idempotency_key)
        );
        if !same {
            return Err(Refusal::Options {
                option: "approval",
                reason: format!("approval {id} is for another call"),
            }
            .into());
        }
        match approval.info.state {
            ApprovalState::Approved if approval.used => Err(closed("used").into()),
            ApprovalState::Approved => Ok(()),
            ApprovalState::Pending => Err(Refusal::ApprovalRequired { tool, approval: id }.into()),
            ApprovalState::Denied => Err(closed("denied").into()),
            ApprovalState::Stale => Err(closed("stale").into()),
        }
    }

    /// Program order or what the caller named. Answers the program predecessors and whether a named
    /// one is deferred.
    fn followed(
        &self,
        batch: &Batch,
        placed: &Placed,
        rests_on: &mut BTreeSet<EffectId>,
    ) -> Ruling<(Vec<EffectId>, bool)> {
        match &placed.call.follows {
            Follows::Tip => {
                let tip = self.state.branches.get(&placed.branch).map(|branch| branch.tip.clone());
                let tip = tip.unwrap_or_default();
                rests_on.extend(tip.iter().copied());
                Ok((tip.into_iter().collect(), false))
            }
            Follows::Turn(turn) => {
                let live = |id: &EffectId| self.state.live_effect(*id).is_some();
                let tip: Vec<EffectId> = turn.iter().copied().filter(live).collect();
                rests_on.extend(tip.iter().copied());
                Ok((tip, false))
            }
            Follows::These(after) => {
                let mut deferred = false;
                for item in after {
                    deferred |= self.after(batch, *item, rests_on)?;
                }
                Ok((Vec::new(), deferred))
            }
        }
    }

    /// Rests on a named effect (C6); whether that one is deferred.
    fn after(
        &self,
        batch: &Batch,
        after: After,
        rests_on: &mut BTreeSet<EffectId>,
    ) -> Ruling<bool> {
        let id = match after {
            After::Effect(id) => id,
            After::Item(place) => {
                let item = usize::try_from(place).ok().and_then(|place| batch.items.get(place));
                let Some(id) = item else {
                    let reference = format!("earlier item {place} of this call");
                    return Err(Refusal::NotFound { reference, name: Name::Id(place) }.into());
                };
                *id
            }
        };
        // An earlier item of this call, which the record names by its id: new ones are numbered one
        // after another from here.
        let new = self.next()..self.next() + batch.new.len() as u64;
        if new.contains(&id.0) {
            rests_on.insert(id);
            return Ok(batch.deferred.binary_search(&id).is_ok());
        }
        let doomed = || Refusal::DoomedDependency { dependency: id, key: None };
        match self.state.effects.get(id) {
            Some(effect) => match effect.state {
                EffectState::Live => {
                    rests_on.insert(id);
                    Ok(effect.is_deferred())
                }
                EffectState::Committed => Ok(effect.is_deferred()),
                EffectState::Doomed | EffectState::Void => Err(doomed().into()),
            },
            None => match self.history.fate(id)? {
                Some(Fate::Committed) => Ok(false),
                Some(Fate::Void) => self.after_void(id, rests_on).map(|()| false),
                Some(Fate::Doomed | Fate::Compensated) => Err(doomed().into()),
                None => Err(Refusal::no_such("effect", id.0).into()),
            },
        }
    }

    /// A void effect stands for what it rested on.
    pub(super) fn after_void(&self, id: EffectId, rests_on: &mut BTreeSet<EffectId>) -> Ruling<()> {
        let mut open = vec![id];
        let mut seen = BTreeSet::new();
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            match self.state.effects.get(id).map(|effect| effect.state) {
                Some(EffectState::Live) => {
                    rests_on.insert(id);
                }
                Some(EffectState::Doomed) => {
                    return Err(Refusal::DoomedDependency { dependency: id, key: None }.into());
                }
                Some(_) => {}
                None => match self.history.fate(id)? {
                    Some(Fate::Doomed | Fate::Compensated) => {
                        return Err(Refusal::DoomedDependency { dependency: id, key: None }.into());
                    }
                    Some(Fate::Void) => {
                        open.extend(self.void_rested_on(id)?);
                    }
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// What the branch observed counts for every later effect of it.
    fn observed_by(&self, batch: &Batch, branch: BranchId, rests_on: &mut BTreeSet<EffectId>) {
        rests_on.extend(batch.seen.get(&branch).into_iter().flatten().copied());
        if let Some(branch) = self.state.branches.get(&branch) {
            rests_on.extend(branch.observed.iter().copied());
            rests_on.extend(branch.held.iter().flat_map(crate::state::Held::rests_on));
        }
    }

    fn read_keys(
        &self,
        batch: &Batch,
        placed: &Placed,
        mode: Mode,
        rests_on: &mut BTreeSet<EffectId>,
    ) -> Ruling<()> {
        let rule = self
            .state
            .branches
            .get(&placed.branch)
            .map_or(ReadRule::default(), |branch| branch.reads);
        for read in &placed.call.reads {
            if mode == Mode::Deferred && read.version.is_none() {
                continue;
            }
            rests_on.extend(self.look(placed.branch, read, rule)?);
            let siblings = batch.writers.get(&read.key).filter(|_| read.version.is_none());
            let Some(siblings) = siblings else { continue };
            let outside = |id: &EffectId| {
                let place = usize::try_from(id.0 - self.next()).unwrap_or(usize::MAX);
                let owner = batch.new.get(place).map(|sibling| sibling.branch);
                owner.is_some_and(|owner| !self.state.lineage(placed.branch).contains(&owner))
            };
            let early: Vec<EffectId> = siblings.iter().copied().filter(outside).collect();
            if rule != ReadRule::Speculative && !early.is_empty() {
                let key = read.key.clone();
                return Err(Refusal::UncommittedKey { key, writers: early }.into());
            }
            rests_on.extend(siblings.iter().copied());
        }
        Ok(())
    }

    fn write_keys(
        &self,
        batch: &Batch,
        placed: &Placed,
        mode: Mode,
        rests_on: &mut BTreeSet<EffectId>,
    ) -> Ruling<()> {
        if mode == Mode::Deferred {
            return Ok(());
        }
        let depend = self
            .state
            .branches
            .get(&placed.branch)
            .is_some_and(|branch| branch.overwrite == Overwrite::Depend);
        for key in &placed.call.writes {
            if let Some(dirty) = self.dirty(key) {
                return Err(dirty.into());
            }
            let mut busy = self.state.busy_writers(key);
            busy.extend(batch.writers.get(key).into_iter().flatten().copied());
            if !busy.is_empty() {
                return Err(Refusal::KeyBusy { key: key.clone(), writers: busy }.into());
            }
            if depend {
                rests_on.extend(self.state.live_writers(key));
            }
            self.newest_named(placed, key)?;
        }
        Ok(())
    }

    /// A version of a key that the call also writes must be the newest, since the inverse was
    /// computed from it (C9).
    fn newest_named(&self, placed: &Placed, key: &Key) -> Ruling<()> {
        for read in placed.call.reads.iter().filter(|read| read.key == *key) {
            let Some(version) = read.version else { continue };
            let newest = self.newest_version(key, version)?;
            if newest != version {
                let writers = vec![EffectId(newest)];
                return Err(Refusal::KeyBusy { key: key.clone(), writers }.into());
            }
        }
        Ok(())
    }

    /// Nothing is ever admitted beyond a limit (I20).
    fn within_limits(
        &mut self,
        batch: &Batch,
        placed: &Placed,
        mode: Mode,
        rests_on: &[EffectId],
    ) -> Ruling<()> {
        self.sizes_within_limits(placed)?;
        let limits = self.state.limits.clone();
        let live = self.state.live + batch.new.len() as u64 + 1;
        let oldest = || -> Vec<EffectId> {
            self.state.effects.iter().filter(|e| e.is_live()).take(8).map(|e| e.id).collect()
        };
        if live > limits.live_effects {
            return Err(exceeded("live_effects", live, limits.live_effects, oldest()));
        }
        let direct = rests_on.len() as u64;
        if direct > limits.dependencies {
            let wait = rests_on.iter().take(8).copied().collect();
            return Err(exceeded("dependencies", direct, limits.dependencies, wait));
        }
        for on in rests_on {
            let readers = self.state.graph.dependents_bound(on.0) as u64 + 1;
            if readers > limits.readers_per_version {
                let exact = self.state.graph.dependents(on.0).len() as u64 + 1;
                if exact > limits.readers_per_version {
                    let limit = limits.readers_per_version;
                    return Err(exceeded("readers_per_version", exact, limit, vec![*on]));
                }
            }
        }
        // A deferred effect is no writer until it is handed out (C12).
        if mode == Mode::Eager {
            self.writers_within_limit(placed, rests_on, limits.live_writers_per_key)?;
        }
        if let Some(limit) = limits.closure {
            let closure = self.state.closure(rests_on).len() as u64;
            if closure > limit {
                let wait = rests_on.iter().take(8).copied().collect();
                return Err(exceeded("closure", closure, limit, wait));
            }
        }
        self.shape_within_limits(rests_on, limits.depth, limits.fan_out)
    }

    fn writers_within_limit(
        &mut self,
        placed: &Placed,
        rests_on: &[EffectId],
        limit: u64,
    ) -> Ruling<()> {
        for key in &placed.call.writes {
            let frontier =
                self.state.keys.get(key).map(|entry| entry.frontier.clone()).unwrap_or_default();
            if (frontier.len() as u64) < limit {
                continue;
            }
            let closure = self.state.closure(rests_on);
            let open: Vec<EffectId> = frontier
                .into_iter()
                .filter(|writer| closure.binary_search(writer).is_err())
                .collect();
            if open.len() as u64 + 1 > limit {
                return Err(exceeded("live_writers_per_key", open.len() as u64 + 1, limit, open));
            }
        }
        Ok(())
    }

    fn shape_within_limits(
        &mut self,
        rests_on: &[EffectId],
        depth: Option<u64>,
        fan_out: Option<u64>,
    ) -> Ruling<()> {
        let wait = || rests_on.iter().take(8).copied().collect::<Vec<_>>();
        if let Some(limit) = depth {
            let chain = self.state.longest_chain(rests_on) + 1;
            if chain > limit {
                return Err(exceeded("depth", chain, limit, wait()));
            }
        }
        if let Some(limit) = fan_out {
            for ancestor in self.state.closure(rests_on) {
                let dragged = self.state.cascade(&[ancestor]).len() as u64;
                if dragged > limit {
                    return Err(exceeded("fan_out", dragged, limit, vec![ancestor]));
                }
            }
        }
        Ok(())
    }

    fn sizes_within_limits(&self, placed: &Placed) -> Ruling<()> {
        let limits = &self.state.limits;
        let call = &placed.call;
        let too_many = |limit, value: u64, allowed: u64| {
            if value > allowed { Err(exceeded(limit, value, allowed, Vec::new())) } else { Ok(()) }
        };
        too_many("name_bytes", call.tool.len() as u64, limits.name_bytes)?;
        too_many("keys", (call.reads.len() + call.writes.len()) as u64, limits.keys)?;
        let keys = call.reads.iter().map(|read| &read.key).chain(&call.writes);
        for key in keys {
            too_many("key_bytes", key.0.len() as u64, limits.key_bytes)?;
        }
        let name = call.idempotency_key.as_ref().map_or(0, Vec::len) as u64;
        too_many("key_bytes", name, limits.key_bytes)?;
        too_many("payload_bytes", call.args.length, limits.payload_bytes)?;
        for inverse in call.inverse.iter().flat_map(|inverse| &inverse.calls) {
            too_many("name_bytes", inverse.tool.len() as u64, limits.name_bytes)?;
            let bytes = inverse.args.map_or(0, |args| args.length);
            too_many("payload_bytes", bytes, limits.payload_bytes)?;
        }
        Ok(())
    }
}

fn mode_of(call: &Registration, class: Class, named_deferred: bool) -> Mode {
    let by_class = if class == Class::Irreversible && call.approval.is_none() {
        Mode::Deferred
    } else {
        Mode::Eager
    };
    if named_deferred { Mode::Deferred } else { call.mode.unwrap_or(by_class) }
}

fn exceeded(limit: &'static str, value: u64, allowed: u64, wait_for: Vec<EffectId>) -> super::Stop {
    Refusal::LimitExceeded { limit, value, allowed, wait_for }.into()
}

/// What the caller named, on record by id: a place in the call means nothing later.
fn by_id(batch: &Batch, follows: &Follows) -> Follows {
    let Follows::These(named) = follows else { return follows.clone() };
    let id = |after: &After| match after {
        After::Effect(_) => *after,
        After::Item(place) => usize::try_from(*place)
            .ok()
            .and_then(|place| batch.items.get(place))
            .map_or(*after, |item| After::Effect(*item)),
    };
    Follows::These(named.iter().map(id).collect())
}
