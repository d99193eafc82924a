//! Folding dooms, and what becomes of rollbacks as wholes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::fold_governed::FULL_WITHIN_MS;
use super::{Delivery, Effect, LaterWriter, Rollback, State, Step, StepStatus, Timer, Weight, raw};
use crate::model::{
    BranchId, Class, Doom, EffectId, EffectState, FailureKind, Inverse, Mode, OnFailure, Outcome,
    Problem, Recalled, Report, RollbackId, Stopped, Trigger,
};

/// The step of an effect that is doomed now. What may have run and has no inverse has failed from
/// the start (C54); a person must see to it.
pub(super) fn planned(effect: &Effect, seq: u64, waived: bool) -> Step {
    let ran = effect.is_writer();
    let mut step = Step::new(!ran);
    if !ran {
        step.clean_at = seq;
    } else if effect.inverse.is_none() {
        step.status = StepStatus::Failed {
            kind: FailureKind::NotCompensable,
            problem: Problem::default(),
            writer: None,
            waived,
        };
    }
    step
}

impl State {
    /// Folds one decision against effects (I5, I7).
    pub(super) fn fold_doom(&mut self, seq: u64, now_ms: u64, doom: &Doom) {
        let waived = self.policy.on_failure == OnFailure::Continue;
        let rollback = doom.within.or(doom.rollback.then_some(RollbackId(seq)));
        let mut members = Vec::new();
        let mut causes: BTreeMap<BranchId, EffectId> = BTreeMap::new();
        let mut owners: BTreeSet<BranchId> = BTreeSet::new();
        for id in doom.members.iter() {
            let Some(effect) = self.effects.get_mut(id) else { continue };
            self.live -= u64::from(effect.is_live());
            effect.step = Some(Box::new(planned(effect, seq, waived)));
            effect.state = EffectState::Doomed;
            effect.rollback = rollback;
            effect.note(seq);
            self.awake.extend(effect.watchers.drain(..));
            for level in &effect.missing_votes {
                if let Some(level) = self.branches.get_mut(level) {
                    level.unvoted.remove(id);
                }
            }
            causes.entry(effect.branch).or_insert(id);
            for holder in &effect.held_by {
                if self.branches.get(holder).is_some_and(|branch| branch.holds(id)) {
                    causes.entry(*holder).or_insert(id);
                }
            }
            owners.insert(effect.branch);
            self.running.remove(&id);
            members.push(id);
        }
        self.settles += members.len() as u64;
        self.order = None;
        // A start that folds only what is needed passes over rollbacks that are gone.
        match rollback.filter(|_| !members.is_empty()) {
            Some(id) if doom.within.is_some() => self.join_governed(seq, id, members.len()),
            Some(id) => self.open_rollback(id, now_ms, doom, members.len()),
            None => {}
        }
        self.dirty_keys(seq, &members);
        for stopped in &doom.stopped {
            let cause = causes.get(&stopped.branch).copied();
            self.hold_instead(stopped);
            self.stop_branch(seq, stopped.branch, stopped.closed, cause);
        }
        for id in &members {
            self.unhold_doomed(*id);
        }
        for owner in owners {
            self.refresh_tip(owner);
        }
        if rollback.is_none() {
            for id in members {
                self.release(id);
            }
        }
    }

    /// The branch holds what stood under the doomed effects that it held.
    fn hold_instead(&mut self, stopped: &Stopped) {
        let live = |state: &State, ids: &[EffectId]| -> Vec<EffectId> {
            ids.iter().copied().filter(|id| state.live_effect(*id).is_some()).collect()
        };
        let (observed, base) = (live(self, &stopped.observed), live(self, &stopped.base));
        for effect in observed.iter().chain(&base) {
            if let Some(effect) = self.effects.get_mut(*effect) {
                effect.held_by.push(stopped.branch);
            }
        }
        if let Some(branch) = self.branches.get_mut(&stopped.branch) {
            branch.observed.extend(observed);
            branch.base.extend(base);
        }
    }

    /// Branches that hold a doomed effect are stopped by now; what they take up again with `resume`
    /// is live (I5).
    fn unhold_doomed(&mut self, id: EffectId) {
        let Some(effect) = self.effects.get_mut(id) else { return };
        let mut holders = std::mem::take(&mut effect.held_by);
        holders.push(effect.branch);
        for holder in holders {
            let Some(branch) = self.branches.get_mut(&holder) else { continue };
            branch.tip.remove(&id);
            branch.base.remove(&id);
            branch.unobserve(id);
            for held in &mut branch.held {
                held.forget(id);
            }
        }
    }

    fn open_rollback(&mut self, id: RollbackId, now_ms: u64, doom: &Doom, held: usize) {
        let rollback = Rollback {
            id,
            members: doom.members.iter().collect(),
            direct: doom.direct.iter().collect(),
            by: doom.by.clone(),
            trigger: doom.trigger,
            reason: doom.reason.clone(),
            created_ms: now_ms,
            moved_ms: now_ms,
            confirm_by_ms: None,
            confirm_record: None,
            started_ms: now_ms,
            approvals: Vec::new(),
            approved: false,
            denied: false,
            open: true,
            governed: false,
            grown: false,
            reviewed: false,
            held,
            finished: None,
            records: vec![id.0],
        };
        self.rollbacks.insert(id, rollback);
        self.timers.insert((now_ms.saturating_add(FULL_WITHIN_MS), Timer::Overdue(id)));
        let approved = self.approval_needed(id).is_none();
        if let Some(rollback) = self.rollbacks.get_mut(&id) {
            rollback.approved = approved;
        }
        self.touched.insert(id);
    }

    /// The keys that the members may have written are dirty from now on.
    pub(super) fn dirty_keys(&mut self, seq: u64, members: &[EffectId]) {
        let mut refresh = BTreeSet::new();
        for id in members {
            let Some(effect) = self.effects.get(*id).filter(|effect| effect.is_writer()) else {
                continue;
            };
            for key in &effect.writes {
                let known = self.keys.trace(key, seq, &effect.records, |trace| {
                    trace.dirty_at = seq;
                    trace.dirty_by = *id;
                });
                if known.writers == [*id] {
                    // Most keys have this writer alone, and it lives no more.
                    known.frontier.clear();
                } else if !refresh.contains(key) {
                    refresh.insert(key.clone());
                }
            }
        }
        for key in refresh {
            self.refresh_frontier(&key);
        }
    }

    /// The effect's keys are clean of it from this record on: its inverse is finished and its call
    /// can land no more (C58). Readers that began before may have seen the doomed value.
    pub(super) fn mark_clean(&mut self, seq: u64, id: EffectId) {
        let Some(effect) = self.effects.get_mut(id) else { return };
        let Some(step) = effect.step.as_mut().filter(|step| step.clean_at == 0) else { return };
        step.clean_at = seq;
        effect.note(seq);
        let (writes, records) = (effect.writes.clone(), effect.records.clone());
        for key in &writes {
            self.keys.trace(key, seq, &records, |trace| {
                trace.dirty_at = seq;
                trace.dirty_by = id;
            });
        }
    }

    /// A doomed effect did not run: a step that nobody has begun in any generation is dropped (C30).
    pub(super) fn discard_unbegun(&mut self, seq: u64, id: EffectId) {
        if let Some(step) = self.effects.get_mut(id).and_then(|effect| effect.step.as_mut())
            && !step.begun
            && !step.is_discarded()
        {
            step.status = StepStatus::Discarded;
            self.order = None;
            self.relax(id);
        }
        self.settled(seq, id);
    }

    /// A plan that nobody was asked about yet and that shrank may need nobody any more.
    pub(super) fn relax(&mut self, member: EffectId) {
        let Some(id) = self.effects.get(member).and_then(|effect| effect.rollback) else { return };
        let unasked = self
            .rollbacks
            .get(&id)
            .is_some_and(|known| !known.approved && !known.denied && known.approvals.is_empty());
        if unasked
            && self.approval_needed(id).is_none()
            && let Some(rollback) = self.rollbacks.get_mut(&id)
        {
            rollback.approved = true;
        }
    }

    /// A late report on a doomed effect: what it brought. Whether the inverse is due again is said
    /// by an event of its own.
    pub(super) fn fold_evidence_doomed(
        &mut self,
        seq: u64,
        id: EffectId,
        outcome: Outcome,
        inverse: Option<&Inverse>,
    ) {
        let Some(effect) = self.effects.get_mut(id) else { return };
        effect.outcome = outcome;
        effect.late |= outcome == Outcome::Done;
        effect.evidence |= outcome == Outcome::Done;
        effect.note(seq);
        if let Some(inverse) = inverse {
            effect.inverse = Some(Arc::new(inverse.clone()));
            effect.inverse_record = seq;
            if inverse.deadline_ms.is_some() {
                if let Some(old) = effect.deadline_ms {
                    self.timers.remove(&(old, Timer::Window(id)));
                }
                effect.deadline_ms = inverse.deadline_ms;
            }
            if let Some(deadline) = effect.deadline_ms {
                self.timers.insert((deadline, Timer::Window(id)));
            }
        }
        self.settled(seq, id);
    }

    /// Folds that nothing is left of a rollback: its members go, as far as no undo may bring them
    /// back.
    pub(super) fn fold_finished(&mut self, seq: u64, id: RollbackId, report: &Report) {
        self.forget_confirmation(id);
        self.owners.remove(&id);
        let Some(rollback) = self.rollbacks.get_mut(&id) else { return };
        rollback.finished = Some(report.clone());
        rollback.open = false;
        // Members that leave memory take with them what they did.
        rollback.moved_ms = 0;
        rollback.grown = false;
        rollback.note(seq);
        let members = rollback.members.clone();
        self.order = None;
        self.in_time(id);
        self.touched.remove(&id);
        for member in members.into_iter().rev() {
            self.try_release(member);
        }
        self.let_rollback_go(id);
    }

    /// Folds settled effects that evidence brings back. A void one comes back as live: the doom that
    /// follows in the same decision treats it like any other.
    pub(super) fn fold_recalled(
        &mut self,
        seq: u64,
        effects: &[Recalled],
        reports: &[(RollbackId, Report)],
    ) {
        for (id, report) in reports {
            if !self.rollbacks.contains_key(id) {
                self.rollbacks.insert(*id, recalled_rollback(*id, seq, report));
            }
        }
        for recalled in effects {
            if !self.effects.contains(recalled.effect) {
                self.recall(seq, recalled);
            }
        }
        self.owners.clear();
        // Edges among the recalled may be late ones, so they are drawn when all are there.
        for recalled in effects {
            for on in &recalled.registered.rests_on {
                self.late_edges |= *on > recalled.effect;
                self.graph.add_dependency(recalled.effect.0, on.0);
            }
            for reader in &recalled.readers {
                self.late_edges |= recalled.effect > *reader;
                self.graph.add_dependency(reader.0, recalled.effect.0);
            }
        }
        self.order = None;
    }

    pub(super) fn recall(&mut self, seq: u64, recalled: &Recalled) {
        let (id, registered) = (recalled.effect, &recalled.registered);
        let position = recalled.position.unwrap_or(id.0);
        self.graph.insert(id.0, &raw(&registered.rests_on));
        let step = recalled.rollback.map(|_| Box::new(step_as_it_was(seq, recalled)));
        let live = step.is_none();
        let effect = Effect {
            id,
            branch: registered.branch,
            token: recalled.token,
            tool: registered.call.tool.as_str().into(),
            class: registered.class,
            mode: registered.mode,
            inverse: recalled.inverse.clone().map(Arc::new),
            inverse_record: recalled.inverse_record,
            reads: registered.call.reads.clone().into(),
            writes: registered.call.writes.clone().into(),
            named: Vec::new(),
            voids: recalled.voids.clone(),
            outcome: recalled.outcome,
            result: None,
            late: recalled.late,
            evidence: recalled.late,
            // Only what is settled leaves memory, so a call without outcome was closed.
            closed: recalled.outcome == Outcome::Unknown,
            state: if live { EffectState::Live } else { EffectState::Doomed },
            missing_votes: Vec::new(),
            position,
            deadline_ms: registered.deadline_ms,
            governed: recalled.governed,
            rollback: recalled.rollback,
            step,
            // Whoever held it has reported, or is gone.
            delivery: recalled.position.map(|_| Box::new(Delivery::ended())),
            fence: None,
            held_by: Vec::new(),
            intents: Vec::new(),
            watchers: Vec::new(),
            records: vec![seq],
        };
        self.live += u64::from(live);
        if let Some(deadline) = effect.deadline_ms {
            self.timers.insert((deadline, Timer::Window(id)));
        }
        if registered.mode == Mode::Eager || effect.delivery.is_some() {
            self.write_again(&effect);
        }
        if let Some(branch) = self.branches.get_mut(&registered.branch) {
            branch.effects.insert(id);
        }
        if let Some(rollback) = recalled.rollback.and_then(|id| self.rollbacks.get_mut(&id)) {
            rollback.held += 1;
            rollback.note(seq);
        }
        self.effects.insert(effect);
        for newer in &recalled.later {
            let entry = self.keys.entry(&newer.key);
            if entry.later.as_ref().is_none_or(|later| later.position < newer.position) {
                let records = vec![seq];
                entry.later =
                    Some(LaterWriter { effect: newer.effect, position: newer.position, records });
            }
        }
        self.rest_again(id);
    }

    /// A recalled effect is among the writers of its keys again, at its place in their order.
    fn write_again(&mut self, effect: &Effect) {
        for key in &effect.writes {
            let effects = &self.effects;
            let writers = &mut self.keys.entry(key).writers;
            let place = writers.partition_point(|writer| {
                effects.get(*writer).is_some_and(|writer| writer.position < effect.position)
            });
            writers.insert(place, effect.id);
        }
    }

    /// What rested on a void effect rests on it again, now that it is known to have run (I13).
    fn rest_again(&mut self, id: EffectId) {
        let readers: Vec<EffectId> = self
            .effects
            .iter()
            .filter(|reader| reader.voids.binary_search(&id).is_ok())
            .map(|reader| reader.id)
            .collect();
        for reader in readers {
            self.late_edges |= id > reader;
            self.graph.add_dependency(reader.0, id.0);
        }
    }

    /// Steps that were denied are due again behind a new request (C56).
    pub(super) fn reopen_denied(&mut self, id: RollbackId) {
        let Some(rollback) = self.rollbacks.get_mut(&id) else { return };
        rollback.grown = false;
        for member in &rollback.members {
            let Some(step) = self.effects.get_mut(*member).and_then(|effect| effect.step.as_mut())
            else {
                continue;
            };
            if let StepStatus::Failed { kind: FailureKind::Denied, .. } = step.status {
                step.status = StepStatus::Pending { again_ms: None };
                self.order = None;
            }
        }
    }

    /// Whether a person must approve the rollback's plan, and if so whether with a written reason:
    /// the policy's table over the steps that may have run (section 7). Committed effects are never
    /// undone without one.
    pub fn approval_needed(&self, id: RollbackId) -> Option<bool> {
        let rollback = self.rollbacks.get(&id)?;
        if let Some(class) = self.artifacts.class_of_run(rollback) {
            // The artifact's own approval covers its run, unless that cannot be taken back.
            return (class == Class::Irreversible).then_some(true);
        }
        let mut weight = Weight::new(&self.policy);
        for effect in rollback.members.iter().filter_map(|id| self.effects.get(*id)) {
            if effect.step.as_ref().is_some_and(|step| !step.is_discarded()) {
                weight.add(effect.class, effect.inverse.is_some(), &effect.writes);
            }
        }
        let needed = weight.needed(&self.policy);
        if rollback.governed { needed.or(Some(false)) } else { needed }
    }
}

/// A finished rollback that came back: what it had approved is approved. Who decided and why is in
/// its record.
fn recalled_rollback(id: RollbackId, seq: u64, report: &Report) -> Rollback {
    let mut members: Vec<EffectId> =
        report.completed.iter().chain(&report.discarded).copied().collect();
    members.sort_unstable();
    Rollback {
        id,
        members,
        direct: Vec::new(),
        by: None,
        trigger: Trigger::Automatic,
        reason: String::new(),
        created_ms: 0,
        moved_ms: 0,
        confirm_by_ms: None,
        confirm_record: None,
        started_ms: 0,
        approvals: Vec::new(),
        approved: true,
        denied: false,
        open: false,
        governed: false,
        grown: false,
        reviewed: false,
        held: 0,
        finished: Some(report.clone()),
        records: vec![seq],
    }
}

/// The step of a recalled effect as it stood when memory let it go.
fn step_as_it_was(seq: u64, recalled: &Recalled) -> Step {
    let mut step = Step::new(recalled.completed_at == 0);
    if recalled.completed_at > 0 {
        step.status = StepStatus::Completed { by_hand: false };
        step.begun = true;
    }
    step.completed_at = recalled.completed_at;
    step.generation = recalled.generation;
    step.clean_at = seq;
    step
}
