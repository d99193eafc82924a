//! Folding what happens to effects: registration, observations, outcomes, delivery.

use std::sync::Arc;

use super::{Delivery, Effect, State, Timer, ids, raw};
use crate::model::{
    BranchId, Class, EffectId, EffectState, Event, Follows, Inverse, Key, Observation, Outcome,
    Registered, Token,
};

/// How many effects a registration may visit to find out which writers it covers. Beyond it some
/// covered writers stay in the frontier, which costs edges and no safety.
const COVER_BUDGET: usize = 4_096;

/// The same for what it covers of its branch's tip through effects of other branches, and how much
/// of the tip is looked at.
const TIP_BUDGET: usize = 256;

impl State {
    pub(super) fn fold_registered(&mut self, seq: u64, registered: &Registered) {
        let id = EffectId(seq);
        let branch = registered.branch;
        self.observe_branch(seq, branch, &registered.observed);
        self.admit_held(branch);
        self.graph.insert(seq, &raw(&registered.rests_on));
        let named = self.named_versions(registered);
        // What the branch saw of a call that never ran is under this effect, too, should it have run.
        let voids = self
            .branches
            .get(&branch)
            .map_or_else(Vec::new, |branch| branch.voids.iter().copied().collect());
        let lineage = self.lineage(branch);
        for level in &lineage {
            if let Some(branch) = self.branches.get_mut(level) {
                branch.unvoted.insert(id);
            }
        }
        self.effects.insert(Effect {
            id,
            branch,
            token: Token { incarnation: self.incarnation, number: seq },
            tool: registered.call.tool.as_str().into(),
            class: registered.class,
            mode: registered.mode,
            inverse: registered.call.inverse.clone().map(Arc::new),
            inverse_record: seq,
            reads: registered.call.reads.clone().into(),
            writes: registered.call.writes.clone().into(),
            named,
            voids,
            outcome: Outcome::Unknown,
            result: None,
            late: false,
            evidence: false,
            closed: false,
            state: EffectState::Live,
            missing_votes: lineage,
            position: seq,
            deadline_ms: registered.deadline_ms,
            governed: false,
            rollback: None,
            step: None,
            delivery: None,
            fence: None,
            held_by: Vec::new(),
            intents: Vec::new(),
            watchers: Vec::new(),
            records: vec![seq],
        });
        self.live += 1;
        if let Some(approval) =
            registered.call.approval.and_then(|approval| self.approvals.get_mut(&approval))
        {
            approval.used = true;
        }
        if let Some(deadline) = registered.deadline_ms {
            self.timers.insert((deadline, Timer::Window(id)));
        }
        if let Some(branch) = self.branches.get_mut(&branch) {
            branch.effects.insert(id);
        }
        if registered.mode == crate::model::Mode::Eager {
            self.running.insert(id);
            self.advance_tip(id, registered);
            self.enter_writer(id, registered);
        }
        self.let_used_approval_go(registered);
    }

    fn let_used_approval_go(&mut self, registered: &Registered) {
        if let Some(approval) = registered.call.approval
            && let Some(effect) = self.effects.get_mut(EffectId(self.head))
            && let Some(used) = self.approvals.remove(&approval)
        {
            effect.records.splice(0..0, used.records);
        }
    }

    /// The effects whose version the call names, itself or through its branch (C25).
    fn named_versions(&self, registered: &Registered) -> Vec<EffectId> {
        let mut named: Vec<EffectId> = registered
            .call
            .reads
            .iter()
            .filter_map(|read| read.version)
            .map(EffectId)
            .filter(|id| self.live_effect(*id).is_some())
            .collect();
        if let Some(branch) = self.branches.get(&registered.branch) {
            named
                .extend(branch.named.iter().copied().filter(|id| registered.rests_on.contains(id)));
        }
        named.sort_unstable();
        named.dedup();
        named
    }

    /// The new effect takes the place of all that it rests on in its branch's tip.
    fn advance_tip(&mut self, id: EffectId, registered: &Registered) {
        let Some(branch) = self.branches.get_mut(&registered.branch) else { return };
        // Items of one call are siblings: the first of them is in the tip, and no predecessor of the
        // second.
        let followed = |member: &EffectId| registered.program.binary_search(member).is_ok();
        if registered.call.follows == Follows::Tip && branch.tip.iter().all(followed) {
            branch.tip.clear();
            branch.tip.insert(id);
            return;
        }
        for covered in &registered.rests_on {
            branch.tip.remove(covered);
        }
        // A tip may be wide: a turn of a hundred thousand readers is. What it covers is near its end.
        let mut rest: Vec<EffectId> = branch.tip.iter().rev().take(TIP_BUDGET).copied().collect();
        rest.reverse();
        // No effect of the branch rests on another one of its tip, so only ways through effects of
        // other branches lead there.
        let past = Some(registered.branch);
        let covered = self.covered(&registered.rests_on, &rest, TIP_BUDGET, past);
        if let Some(branch) = self.branches.get_mut(&registered.branch) {
            for covered in covered {
                branch.tip.remove(&covered);
            }
            branch.tip.insert(id);
        }
    }

    /// Those of `candidates`, which are ascending, that something in `from` is or rests on, found
    /// within a budget; ways through eager effects of the branch `past` are not looked at. (A ring
    /// may lead through them, so they are where a late edge was ever added.)
    fn covered(
        &mut self,
        from: &[EffectId],
        candidates: &[EffectId],
        budget: usize,
        past: Option<BranchId>,
    ) -> Vec<EffectId> {
        let (Some(oldest), false) = (candidates.first(), from.is_empty()) else {
            return Vec::new();
        };
        let (oldest, late, mut left) = (oldest.0, self.late_edges, budget);
        let effects = &self.effects;
        let mut near = |id: u64| {
            let id = EffectId(id);
            let closer = late
                || (id.0 >= oldest
                    && (past.is_none_or(|past| {
                        effects.get(id).is_none_or(|on| on.branch != past || on.is_deferred())
                    }) || candidates.binary_search(&id).is_ok()));
            left = left.saturating_sub(usize::from(closer));
            closer && left > 0
        };
        let reached = self.graph.closure_where(&mut self.scratch, &raw(from), &mut near);
        candidates
            .iter()
            .copied()
            .filter(|candidate| reached.binary_search(&candidate.0).is_ok())
            .collect()
    }

    fn enter_writer(&mut self, id: EffectId, registered: &Registered) {
        let mut open: Vec<EffectId> = Vec::new();
        for key in &registered.call.writes {
            let own = registered.branch;
            let follows_tip = registered.call.follows == Follows::Tip;
            let effects = &self.effects;
            let entry = self.keys.entry(key);
            if entry.writers.last() == Some(&id) {
                continue;
            }
            entry.writers.push(id);
            entry.frontier.retain(|writer| {
                let by_program =
                    follows_tip && effects.get(*writer).is_some_and(|writer| writer.branch == own);
                !by_program && registered.rests_on.binary_search(writer).is_err()
            });
            open.extend(entry.frontier.iter().copied());
        }
        open.sort_unstable();
        open.dedup();
        let covered = self.covered(&registered.rests_on, &open, COVER_BUDGET, None);
        for key in &registered.call.writes {
            let entry = self.keys.entry(key);
            entry.frontier.retain(|writer| covered.binary_search(writer).is_err());
            if entry.frontier.last() != Some(&id) {
                entry.frontier.push(id);
            }
        }
    }

    /// Computes anew which live writers of a key no other live writer of it rests on.
    pub(super) fn refresh_frontier(&mut self, key: &Key) {
        let live: Vec<EffectId> = self
            .live_writers(key)
            .into_iter()
            .filter(|id| self.effects.get(*id).is_some_and(|effect| !effect.is_deferred()))
            .collect();
        let frontier = if live.len() < 2 {
            live
        } else {
            let mut sorted = live;
            sorted.sort_unstable();
            ids(self.graph.uncovered(&mut self.scratch, &raw(&sorted)))
        };
        if let Some(entry) = self.keys.get_mut(key) {
            entry.frontier = frontier;
        }
    }

    pub(super) fn fold_effect(&mut self, seq: u64, event: &Event) {
        match event {
            Event::ObservedLate { effect, observations, rests_on } => {
                self.rest_on_more(seq, *effect, rests_on);
                self.name_versions(*effect, observations);
                let plain = observations.iter().filter(|seen| seen.version.is_none());
                self.see_voided(*effect, plain.map(|seen| seen.key.clone()).collect());
            }
            Event::Done { effect, result, inverse, rests_on } => {
                self.rest_on_more(seq, *effect, rests_on);
                if let Some(known) = self.effects.get_mut(*effect) {
                    known.result = Some((seq, *result));
                }
                self.done(seq, *effect, inverse.as_ref());
            }
            Event::NotRun { effect, observed, .. } => self.not_run(seq, *effect, observed),
            Event::Exposed { effect, .. } => {
                if let Some(effect) = self.effects.get_mut(*effect) {
                    effect.class = effect.class.max(Class::Partial);
                    effect.note(seq);
                }
            }
            Event::Closed { effect, .. } => {
                if let Some(known) = self.effects.get_mut(*effect) {
                    known.closed = true;
                    known.note(seq);
                    self.settled(seq, *effect);
                }
            }
            Event::Evidence { effect, outcome, inverse, .. } => {
                let doomed = self.effects.get(*effect).is_some_and(Effect::is_doomed);
                if doomed {
                    self.fold_evidence_doomed(seq, *effect, *outcome, inverse.as_ref());
                } else if let Some(known) = self.effects.get_mut(*effect) {
                    known.evidence |= *outcome == Outcome::Done;
                    known.note(seq);
                }
            }
            Event::WindowPassed { effect } => {
                if let Some(known) = self.effects.get_mut(*effect) {
                    if let Some(deadline) = known.deadline_ms {
                        self.timers.remove(&(deadline, Timer::Window(*effect)));
                    }
                    known.note(seq);
                }
            }
            Event::Delivered { effect, agent, until_ms, .. } => {
                self.delivered(seq, *effect, agent, *until_ms);
            }
            Event::DeliveryHeld { effect, until_ms } => {
                self.hold_delivery(seq, *effect, *until_ms);
            }
            _ => {}
        }
    }

    pub(super) fn rest_on_more(&mut self, seq: u64, id: EffectId, rests_on: &[EffectId]) {
        let Some(effect) = self.effects.get_mut(id) else { return };
        effect.note(seq);
        let mut added = false;
        for on in rests_on {
            if *on != id && self.graph.add_dependency(id.0, on.0) {
                added = true;
                self.late_edges |= on.0 > id.0;
            }
        }
        if added {
            self.refresh_covers(id, rests_on);
        }
    }

    /// A late edge can cover members of tips and frontiers: those are computed anew.
    fn refresh_covers(&mut self, id: EffectId, rests_on: &[EffectId]) {
        let above = self.cascade(&[id]);
        // A child's tip holds effects of its parent, too.
        let mut owners: Vec<_> = above
            .iter()
            .filter_map(|effect| self.effects.get(*effect))
            .flat_map(|effect| effect.held_by.iter().copied().chain([effect.branch]))
            .collect();
        owners.sort_unstable();
        owners.dedup();
        for owner in owners {
            self.refresh_tip(owner);
        }
        let below = self.closure(rests_on);
        let mut keys: Vec<Key> = Vec::new();
        for effect in below.iter().filter_map(|effect| self.effects.get(*effect)) {
            keys.extend(
                effect
                    .writes
                    .iter()
                    .filter(|key| self.keys.get(key).is_some_and(|entry| entry.frontier.len() > 1))
                    .cloned(),
            );
        }
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            self.refresh_frontier(&key);
        }
    }

    fn name_versions(&mut self, id: EffectId, observations: &[Observation]) {
        let named: Vec<EffectId> = observations
            .iter()
            .filter(|observation| observation.version.is_some())
            .flat_map(|observation| observation.writers.iter().copied())
            .collect();
        if let Some(effect) = self.effects.get_mut(id) {
            effect.named.extend(named);
            effect.named.sort_unstable();
            effect.named.dedup();
        }
    }

    fn done(&mut self, seq: u64, id: EffectId, inverse: Option<&Inverse>) {
        let Some(effect) = self.effects.get(id) else { return };
        let plain = effect.reads.iter().filter(|read| read.version.is_none());
        self.see_voided(id, plain.map(|read| read.key.clone()).collect());
        let Some(effect) = self.effects.get_mut(id) else { return };
        effect.outcome = Outcome::Done;
        if let Some(inverse) = inverse {
            effect.inverse = Some(Arc::new(inverse.clone()));
            effect.inverse_record = seq;
        }
        effect.note(seq);
        self.running.remove(&id);
        self.wake_watchers(id);
        self.delivery_ended(id);
        self.settled(seq, id);
    }

    /// An outcome became known, or is known never to come.
    pub(super) fn settled(&mut self, seq: u64, id: EffectId) {
        let Some(effect) = self.effects.get(id) else { return };
        if let Some(rollback) = effect.rollback {
            self.touched.insert(rollback);
        }
        if effect.is_doomed() && !effect.is_dirty() {
            self.mark_clean(seq, id);
        }
    }

    fn not_run(&mut self, seq: u64, id: EffectId, observed: &[EffectId]) {
        let Some(effect) = self.effects.get_mut(id) else { return };
        effect.note(seq);
        effect.outcome = Outcome::NotRun;
        match effect.state {
            EffectState::Live => self.make_void(seq, id, observed),
            EffectState::Doomed => {
                self.rest_on_more(seq, id, observed);
                self.order = None;
                self.discard_unbegun(seq, id);
            }
            _ => self.delivery_ended(id),
        }
    }

    fn delivered(&mut self, seq: u64, id: EffectId, agent: &str, until_ms: u64) {
        let Some(effect) = self.effects.get_mut(id) else { return };
        let attempts = effect.delivery.as_ref().map_or(0, |delivery| delivery.attempts) + 1;
        let first = effect.delivery.is_none();
        if let Some(old) = effect.delivery.as_ref().and_then(|delivery| delivery.until_ms) {
            self.timers.remove(&(old, Timer::Delivery(id)));
        }
        effect.delivery = Some(Box::new(Delivery {
            agent: agent.to_owned(),
            until_ms: Some(until_ms),
            attempts,
        }));
        effect.token = Token { incarnation: self.incarnation, number: seq };
        effect.note(seq);
        self.timers.insert((until_ms, Timer::Delivery(id)));
        self.at_work.insert(id);
        if first {
            effect.position = seq;
            let (writes, reads) = (effect.writes.clone(), effect.reads.clone());
            for key in &writes {
                self.keys.entry(key).writers.push(id);
            }
            for read in &reads {
                self.keys.entry(&read.key).delivered_readers.push(id);
            }
        }
    }

    fn hold_delivery(&mut self, seq: u64, id: EffectId, until_ms: Option<u64>) {
        let Some(effect) = self.effects.get_mut(id) else { return };
        effect.note(seq);
        let Some(delivery) = effect.delivery.as_mut() else { return };
        if let Some(old) = delivery.until_ms {
            self.timers.remove(&(old, Timer::Delivery(id)));
        }
        delivery.until_ms = until_ms;
        match until_ms {
            Some(until) => {
                self.timers.insert((until, Timer::Delivery(id)));
            }
            None => {
                self.at_work.remove(&id);
            }
        }
    }

    /// A delivered effect has reported: it leaves the outbox if it ran.
    fn delivery_ended(&mut self, id: EffectId) {
        let Some(effect) = self.effects.get_mut(id) else { return };
        let Some(delivery) = effect.delivery.as_mut() else { return };
        if let Some(old) = delivery.until_ms.take() {
            self.timers.remove(&(old, Timer::Delivery(id)));
            self.at_work.remove(&id);
        }
        let (ran, reads) = (effect.outcome == Outcome::Done, effect.reads.clone());
        for read in &reads {
            if let Some(entry) = self.keys.get_mut(&read.key) {
                entry.delivered_readers.retain(|reader| *reader != id);
            }
            self.keys.shrink(&read.key);
        }
        if ran && self.effects.get(id).is_some_and(|effect| effect.state == EffectState::Committed)
        {
            self.outbox.remove(&id);
            self.settle_committed(id);
        }
    }
}

/// Adds records to an ascending list.
pub(super) fn merge_records(into: &mut Vec<u64>, records: &[u64]) {
    // A few find their places; sorting a long list anew for each of many would be its square.
    if records.len() <= 8 {
        for record in records {
            if let Err(place) = into.binary_search(record) {
                into.insert(place, *record);
            }
        }
        return;
    }
    into.extend(records.iter().copied());
    into.sort_unstable();
    into.dedup();
}
