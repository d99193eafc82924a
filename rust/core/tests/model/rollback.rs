//! Dooming, and the undo of what was doomed: order, claims, attempts, guard, generations,
//! approvals and reports.

use std::collections::{BTreeMap, BTreeSet};

use super::world::*;

/// What one decision against effects did.
pub struct Doom {
    pub cascaded: Ids,
    pub rollback: Option<Id>,
}

/// A step as `claim` hands it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimed {
    pub effect: Id,
    pub attempt: u32,
    pub generation: u32,
    pub token: u64,
}

/// The members of a rollback, each in exactly one place (I18).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    pub completed: Ids,
    pub unsettled: Ids,
    pub failed: BTreeMap<Id, &'static str>,
    pub blocked: Ids,
    pub pending: Ids,
    pub discarded: Ids,
}

impl Places {
    pub fn clean(&self) -> bool {
        self.unsettled.is_empty()
            && self.failed.is_empty()
            && self.blocked.is_empty()
            && self.pending.is_empty()
    }
}

/// For each member all that must be undone before it.
pub type Before = BTreeMap<Id, Ids>;

impl Model {
    /// Decides against effects and all that rests on them, and plans the undo, in one step (I5, I7).
    pub fn doom(&mut self, roots: &Ids) -> Doom {
        for effect in roots {
            self.get(*effect).state = Life::Doomed;
        }
        let cascaded = self.cascade(roots);
        for effect in &cascaded {
            self.get(*effect).state = Life::Doomed;
        }
        let members: Ids = roots.union(&cascaded).copied().collect();
        for effect in &members {
            self.plan_undo(*effect);
        }
        for fence in self.fences.values_mut() {
            if fence.status == FenceIs::Waiting && !fence.targets.is_disjoint(&members) {
                fence.status = FenceIs::Aborted;
            }
        }
        self.stop_branches(&members);
        let mut rollback = None;
        if members.iter().any(|e| self.may_have_run(*e)) {
            let id = self.new_id();
            for effect in &members {
                self.get(*effect).rollback = Some(id);
            }
            let fresh = Rollback {
                id,
                members,
                gate: Gate::Automatic,
                plan: Ids::new(),
                reason_required: false,
            };
            self.rollbacks.insert(id, fresh);
            rollback = Some(id);
        }
        Doom { cascaded, rollback }
    }

    fn plan_undo(&mut self, effect: Id) {
        let counts = self.counts(effect, None);
        let position = self.position;
        let record = self.get(effect);
        record.settled = Some(position);
        record.sealed_then = record.sealed_then.or(Some(counts));
        let never = record.deferred || record.outcome == Known::NotRun;
        record.undo = Some(Undo {
            status: if never { Status::Discarded } else { Status::Due },
            generation: 1,
            attempt: 0,
            failures: 0,
            begun: 0,
            not_before_ms: 0,
            token: None,
            lease_until_ms: 0,
            finished: 0,
            evidence_pending: false,
        });
    }

    /// Doom stops every open branch that owns, was handed or has observed one of the effects.
    fn stop_branches(&mut self, members: &Ids) {
        let open: Vec<Name> =
            self.branches.values().filter(|b| b.state == BranchIs::Open).map(|b| b.name).collect();
        for name in open {
            let own: Ids = self.own(name).into_iter().collect();
            let cut = !own.is_disjoint(members)
                || !self.expand(&self.branches[&name].handed).is_disjoint(members)
                || !self.observed(name).is_disjoint(members);
            if cut {
                self.line(name).state = BranchIs::Doomed;
            }
        }
    }

    pub fn unfinished(&self, effect: Id) -> bool {
        let undo = self.effects[&effect].undo.as_ref();
        undo.is_some_and(|u| matches!(u.status, Status::Due | Status::Claimed | Status::Failed(_)))
    }

    /// Whether both wrote a common key and the first did it later.
    pub fn overwrote(&self, later: Id, earlier: Id) -> bool {
        later > earlier
            && self.may_have_run(later)
            && self.may_have_run(earlier)
            && self.effects[&earlier]
                .writes
                .iter()
                .any(|key| self.wrote(later, *key) && self.wrote(earlier, *key))
    }

    /// The transitive order over the members of all rollbacks that are not clean (I13, C48).
    pub fn before(&self) -> Before {
        let nothing = Ids::new();
        let open = self.rollbacks.values().filter(|r| !self.places(r.id, &nothing).clean());
        let domain: Ids = open.flat_map(|r| r.members.iter().copied()).collect();
        let direct: BTreeMap<Id, Ids> = domain.iter().map(|e| (*e, self.direct(*e))).collect();
        let mut first: Before = BTreeMap::new();
        for e in &domain {
            let ahead = |f: &Id| f != e && (direct[f].contains(e) || self.overwrote(*f, *e));
            first.insert(*e, domain.iter().copied().filter(ahead).collect());
        }
        loop {
            let mut changed = false;
            for e in &domain {
                let more: Ids = first[e].iter().flat_map(|f| first[f].clone()).collect();
                let ahead = first.entry(*e).or_default();
                let size = ahead.len();
                ahead.extend(more);
                changed |= ahead.len() > size;
            }
            if !changed {
                return first;
            }
        }
    }

    /// The unfinished members that this step has to wait for.
    pub fn held_by(&self, effect: Id, before: &Before) -> Ids {
        let Some(ahead) = before.get(&effect) else { return Ids::new() };
        let holds = |other: &Id| {
            let ring = before[other].contains(&effect);
            if *other == effect || !self.unfinished(*other) || (ring && *other < effect) {
                return false;
            }
            let undo = self.effects[other].undo.as_ref();
            let failed = undo.is_some_and(|u| matches!(u.status, Status::Failed(_)));
            !(failed && self.policy.go_on) || self.overwrote(*other, effect)
        };
        ahead.iter().copied().filter(holds).collect()
    }

    /// Writers of one of its keys after it that are in the given state.
    pub fn later_writers(&self, effect: Id, state: Life) -> Ids {
        let keys = &self.effects[&effect].writes;
        let later = |e: &&Effect| {
            e.id > effect && e.state == state && keys.iter().any(|k| self.wrote(e.id, *k))
        };
        self.effects.values().filter(later).map(|e| e.id).collect()
    }

    /// Whether later writers matter for the step (C49).
    pub fn guarded(&self, effect: Id) -> bool {
        let record = &self.effects[&effect];
        record.inverse.as_ref().is_none_or(|inverse| !inverse.compare_and_set) || record.late
    }

    fn waits(&self, effect: Id) -> bool {
        self.guarded(effect) && !self.later_writers(effect, Life::Live).is_empty()
    }

    fn steps_in(&self, wanted: impl Fn(&Status) -> bool) -> Ids {
        let is = |e: &&Effect| e.undo.as_ref().is_some_and(|u| wanted(&u.status));
        self.effects.values().filter(is).map(|e| e.id).collect()
    }

    /// Due steps behind a live later writer, or behind a failed or blocked one (C52).
    pub fn blocked(&self, before: &Before) -> Ids {
        let due = self.steps_in(|s| *s == Status::Due);
        let failed = self.steps_in(|s| matches!(s, Status::Failed(_)));
        let mut found: Ids = due.iter().copied().filter(|e| self.waits(*e)).collect();
        loop {
            let stuck = |e: &Id| {
                let held = self.held_by(*e, before);
                !(found.contains(e) || (held.is_disjoint(&found) && held.is_disjoint(&failed)))
            };
            let more: Ids = due.iter().copied().filter(stuck).collect();
            if more.is_empty() {
                return found;
            }
            found.extend(more);
        }
    }

    /// The steps that can be claimed now, ascending.
    pub fn ready(&self, agent: &str) -> Ids {
        let before = self.before();
        let may = |e: &&Effect| {
            let (Some(undo), Some(rollback)) = (&e.undo, e.rollback) else { return false };
            let anyone = e.inverse.as_ref().is_some_and(|inverse| inverse.anyone);
            let open = matches!(self.rollbacks[&rollback].gate, Gate::Automatic | Gate::Approved);
            undo.status == Status::Due
                && (agent == "*" || anyone || agent == self.branches[&e.branch].agent)
                && open
                && undo.not_before_ms <= self.now_ms
                && !self.waits(e.id)
                && self.held_by(e.id, &before).is_empty()
        };
        self.effects.values().filter(may).map(|e| e.id).collect()
    }

    pub fn undo(&mut self, effect: Id) -> &mut Undo {
        self.get(effect).undo.as_mut().expect("a doomed effect has a step")
    }

    pub fn claim_step(&mut self, agent: &str, lease_ms: u64) -> Option<Claimed> {
        let effect = self.ready(agent).last().copied()?;
        let token = self.new_token();
        let (until, position) = (self.now_ms + lease_ms, self.position);
        let undo = self.undo(effect);
        undo.status = Status::Claimed;
        undo.token = Some(token);
        undo.lease_until_ms = until;
        undo.attempt += 1;
        undo.begun += 1;
        let (attempt, generation) = (undo.attempt, undo.generation);
        self.starts.push((position, effect, generation));
        Some(Claimed { effect, attempt, generation, token })
    }

    /// The inverse is due again under a new key; a claim is left to end first (C59).
    pub fn raise_generation(&mut self, effect: Id) {
        let undo = self.undo(effect);
        if undo.status == Status::Claimed {
            undo.evidence_pending = true;
            return;
        }
        undo.status = Status::Due;
        undo.evidence_pending = false;
        undo.generation += 1;
        undo.attempt = 0;
        undo.failures = 0;
        undo.not_before_ms = 0;
    }

    /// Inverses of earlier doomed writers of its keys that finished after the position are due again.
    pub fn earlier_due_again(&mut self, effect: Id, since: u64) {
        let done = self.steps_in(|s| matches!(s, Status::Completed | Status::Resolved));
        for other in done {
            if other < effect && self.overwrote(effect, other) && self.undo(other).finished > since
            {
                self.raise_generation(other);
            }
        }
    }

    fn held_claim(&mut self, step: Claimed) -> bool {
        let undo = self.undo(step.effect);
        undo.status == Status::Claimed && undo.token == Some(step.token)
    }

    /// The position at which the claim began.
    fn claimed_at(&self, step: Claimed) -> u64 {
        let mine = |s: &&(u64, Id, u32)| s.1 == step.effect && s.2 == step.generation;
        let start = self.starts.iter().filter(mine).nth(step.attempt as usize - 1);
        start.map_or(self.position, |start| start.0)
    }

    /// An outcome whose lease is lost is refused, and evidence that the inverse may have run (C51).
    fn lost<T>(&mut self, step: Claimed) -> Ruling<T> {
        let since = self.claimed_at(step);
        self.earlier_due_again(step.effect, since);
        refuse("lease_lost")
    }

    pub fn complete_step(&mut self, step: Claimed) -> Ruling<()> {
        if !self.held_claim(step) {
            return self.lost(step);
        }
        let position = self.position;
        let undo = self.undo(step.effect);
        undo.token = None;
        undo.status = Status::Completed;
        undo.finished = position;
        if undo.evidence_pending {
            self.raise_generation(step.effect);
        }
        let since = self.effects[&step.effect].registered;
        self.earlier_due_again(step.effect, since);
        Ok(())
    }

    pub fn fail_step(&mut self, step: Claimed, end: Failing) -> Ruling<()> {
        if !self.held_claim(step) {
            return self.lost(step);
        }
        let (retry, now) = (self.policy.retry, self.now_ms);
        let undo = self.undo(step.effect);
        undo.token = None;
        undo.status = Status::Due;
        undo.failures += 1;
        if undo.evidence_pending {
            self.raise_generation(step.effect);
        } else if end == Failing::Permanent {
            undo.status = Status::Failed("permanent");
        } else if undo.failures >= retry.max_attempts {
            undo.status = Status::Failed("error");
        } else {
            let wait = match end {
                Failing::Later(wait) => wait,
                _ => retry.wait_ms(undo.failures),
            };
            undo.not_before_ms = now + wait;
        }
        Ok(())
    }

    /// The attempt is on record but not counted (C50).
    pub fn release_step(&mut self, step: Claimed) -> Ruling<()> {
        if !self.held_claim(step) {
            return refuse("lease_lost");
        }
        let undo = self.undo(step.effect);
        undo.token = None;
        undo.status = Status::Due;
        if undo.evidence_pending {
            self.raise_generation(step.effect);
        }
        Ok(())
    }

    pub fn renew_step(&mut self, step: Claimed, lease_ms: u64) -> Ruling<()> {
        if !self.held_claim(step) {
            return refuse("lease_lost");
        }
        let until = self.now_ms + lease_ms;
        self.undo(step.effect).lease_until_ms = until;
        Ok(())
    }

    /// Ends the claims whose lease is over (C50).
    pub fn expire_steps(&mut self) {
        let (now, most) = (self.now_ms, self.policy.retry.max_attempts);
        for effect in self.steps_in(|s| *s == Status::Claimed) {
            let undo = self.undo(effect);
            if now < undo.lease_until_ms {
                continue;
            }
            undo.token = None;
            undo.status = Status::Due;
            undo.failures += 1;
            if undo.evidence_pending {
                self.raise_generation(effect);
            } else if undo.failures >= most {
                undo.status = Status::Failed("timeout");
            }
        }
    }

    /// Fails the due steps that cannot be run, in the order of C62.
    pub fn judge_due(&mut self) {
        for effect in self.steps_in(|s| *s == Status::Due) {
            let record = &self.effects[&effect];
            let denied = record.rollback.is_some_and(|r| self.rollbacks[&r].gate == Gate::Denied);
            let deadline = record.inverse.as_ref().and_then(|inverse| inverse.deadline_ms);
            let kind = if record.inverse.is_none() {
                "not_compensable"
            } else if denied {
                "denied"
            } else if deadline.is_some_and(|deadline| self.now_ms >= deadline) {
                "expired"
            } else if self.guarded(effect)
                && !self.later_writers(effect, Life::Committed).is_empty()
            {
                "conflict"
            } else {
                continue;
            };
            self.undo(effect).status = Status::Failed(kind);
        }
    }

    pub fn retry_step(&mut self, effect: Id) {
        let undo = self.undo(effect);
        undo.status = Status::Due;
        undo.failures = 0;
        undo.not_before_ms = 0;
    }

    /// A person says that the undo is done (C53).
    pub fn resolve_step(&mut self, effect: Id) {
        let position = self.position;
        let undo = self.undo(effect);
        undo.status = Status::Resolved;
        undo.finished = position;
    }

    /// The members that have a step.
    fn plan(&self, rollback: Id) -> Ids {
        let members = self.rollbacks[&rollback].members.iter().copied();
        members.filter(|e| self.may_have_run(*e)).collect()
    }

    /// Whether the plan needs a person, and whether it needs a written reason.
    fn asks(&self, plan: &Ids) -> (bool, bool) {
        let steps: Vec<&Effect> = plan.iter().map(|e| &self.effects[e]).collect();
        let written: BTreeSet<Key> = steps.iter().flat_map(|e| e.writes.iter().copied()).collect();
        let keys = written.len() + steps.iter().filter(|e| e.writes.is_empty()).count();
        let bare = steps.iter().any(|e| e.inverse.is_none() || e.class == Class::Irreversible);
        let partial = steps.iter().any(|e| e.class == Class::Partial);
        (bare || partial || keys > self.policy.auto_keys, bare)
    }

    /// Asks for an approval of the plan as it is now, if the policy wants one.
    pub fn request(&mut self, rollback: Id) {
        let plan = self.plan(rollback);
        let (person, reason) = self.asks(&plan);
        if person {
            self.new_id();
        }
        let record = self.rollbacks.get_mut(&rollback).expect("a rollback of the model");
        if person {
            record.plan = plan;
            record.reason_required = reason;
        }
        record.gate = if person { Gate::Pending } else { Gate::Automatic };
    }

    /// A pending request whose plan changed is stale; an approved plan may shrink but not grow (C55).
    pub fn review_plans(&mut self) {
        let all: Vec<Id> = self.rollbacks.keys().copied().collect();
        for id in all {
            let plan = self.plan(id);
            let record = &self.rollbacks[&id];
            let again = match record.gate {
                Gate::Automatic => self.asks(&plan).0,
                Gate::Pending => plan != record.plan,
                Gate::Approved => !plan.is_subset(&record.plan),
                Gate::Denied => false,
            };
            if again {
                self.request(id);
            }
        }
    }

    /// Answers the pending request once.
    pub fn answer(&mut self, rollback: Id, approve: bool, reason: bool) -> Ruling<()> {
        let record = self.rollbacks.get_mut(&rollback).expect("a rollback of the model");
        if record.gate != Gate::Pending {
            return refuse("approval_closed");
        }
        if approve && record.reason_required && !reason {
            return refuse("reason_required");
        }
        record.gate = if approve { Gate::Approved } else { Gate::Denied };
        Ok(())
    }

    /// A new request after a denial; what was denied is due behind it (C56).
    pub fn ask_again(&mut self, rollback: Id) {
        if self.rollbacks[&rollback].gate != Gate::Denied {
            return;
        }
        for effect in self.rollbacks[&rollback].members.clone() {
            let undo = self.undo(effect);
            if undo.status == Status::Failed("denied") {
                undo.status = Status::Due;
            }
        }
        self.request(rollback);
    }

    /// Where each member is (I18).
    pub fn places(&self, rollback: Id, blocked: &Ids) -> Places {
        let mut places = Places::default();
        for effect in &self.rollbacks[&rollback].members {
            let Some(undo) = &self.effects[effect].undo else { continue };
            match undo.status {
                Status::Failed(kind) => {
                    places.failed.insert(*effect, kind);
                }
                Status::Completed | Status::Resolved if self.settled_outcome(*effect) => {
                    places.completed.insert(*effect);
                }
                Status::Completed | Status::Resolved => {
                    places.unsettled.insert(*effect);
                }
                Status::Discarded => {
                    places.discarded.insert(*effect);
                }
                Status::Due | Status::Claimed => {
                    let stuck = blocked.contains(effect);
                    if stuck { &mut places.blocked } else { &mut places.pending }.insert(*effect);
                }
            }
        }
        places
    }
}

/// How an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    Error,
    Permanent,
    Later(u64),
}
