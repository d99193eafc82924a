//! Register: effects are written down with their inverse before they run, all of a call or none.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fate, Ruling, Stop, Turn};
use crate::model::{
    BranchId, EffectId, EffectState, Event, Key, Observation, Observed, Outcome, Placed, Receipt,
    Refusal, Registered, Reply, Token,
};

/// The earlier items of the call, which the state does not know yet.
#[derive(Default)]
pub(super) struct Batch {
    /// The effect of each item so far, new or known.
    pub(super) items: Vec<EffectId>,
    /// New items that write a key.
    pub(super) writers: BTreeMap<Key, Vec<EffectId>>,
    /// New items that are deferred.
    pub(super) deferred: Vec<EffectId>,
    /// New items by idempotency key.
    keys: BTreeMap<Vec<u8>, usize>,
    /// What is to be written.
    pub(super) new: Vec<Registered>,
    /// Writers that branches observed by this call: every later item rests on them, too.
    pub(super) seen: BTreeMap<BranchId, BTreeSet<EffectId>>,
    /// Branches whose observations ride along with a registration already.
    ridden: Vec<BranchId>,
}

impl Turn<'_> {
    pub(super) fn register(&mut self, calls: &[Placed], observed: &[Observed]) -> Ruling<Reply> {
        let limit = self.state.limits.batch_records;
        if calls.len() as u64 > limit {
            return Err(Refusal::LimitExceeded {
                limit: "batch_records",
                value: calls.len() as u64,
                allowed: limit,
                wait_for: Vec::new(),
            }
            .into());
        }
        if calls.is_empty() {
            return self.write_observed(observed);
        }
        let mut batch = Batch::default();
        let mut receipts = Vec::with_capacity(calls.len());
        let mut asked: Vec<(BranchId, EffectId)> = Vec::new();
        for (index, placed) in calls.iter().enumerate() {
            let receipt = self
                .register_one(&mut batch, placed, observed, &mut asked)
                .map_err(|stop| at(stop, index, calls.len()))?;
            batch.items.push(receipt.effect);
            receipts.push(receipt);
        }
        for registered in batch.new {
            self.emit(Event::Registered(Box::new(registered)));
        }
        for (branch, effect) in asked {
            self.observe_known(branch, effect);
        }
        Ok(Reply::Receipts(receipts))
    }

    /// Observations that wait for a registration become durable without one.
    fn write_observed(&mut self, observed: &[Observed]) -> Ruling<Reply> {
        for Observed { branch, observations } in observed {
            match self.renew(*branch, observations) {
                Ok(observations) => {
                    self.emit(Event::Observed { branch: *branch, observations });
                }
                Err(Stop::Refused { .. }) => {} // The branch was stopped, which is the news.
                Err(unreadable) => return Err(unreadable),
            }
        }
        Ok(Reply::Nothing)
    }

    fn register_one(
        &mut self,
        batch: &mut Batch,
        placed: &Placed,
        observed: &[Observed],
        asked: &mut Vec<(BranchId, EffectId)>,
    ) -> Ruling<Receipt> {
        self.holds(placed.branch, placed.token, "register")?;
        if let Some(receipt) = self.known(batch, placed, asked)? {
            let news = asked.iter().filter(|(branch, _)| *branch == placed.branch);
            let news = news.map(|(_, effect)| *effect);
            batch.seen.entry(placed.branch).or_default().extend(news);
            return Ok(receipt);
        }
        self.takes_work(placed.branch)?;
        if let Some(scope) = self.compensating(placed.branch) {
            return Err(scope.into());
        }
        if let Some(held) = self.held(placed.branch) {
            return Err(held.into());
        }
        if let Some((by, reason)) = self.state.frozen.clone() {
            return Err(Refusal::Frozen { by, reason }.into());
        }
        let riding = self.riding(batch, placed.branch, observed)?;
        let writers = riding.iter().flat_map(|seen| seen.writers.iter().copied());
        batch.seen.entry(placed.branch).or_default().extend(writers);
        let id = EffectId(self.next() + batch.new.len() as u64);
        let registered = self.admit_call(batch, placed, riding)?;
        for key in &registered.call.writes {
            if registered.mode == crate::model::Mode::Eager {
                batch.writers.entry(key.clone()).or_default().push(id);
            }
        }
        if registered.mode == crate::model::Mode::Deferred {
            batch.deferred.push(id);
        }
        if let Some(key) = &registered.call.idempotency_key {
            batch.keys.insert(key.clone(), batch.items.len());
        }
        batch.ridden.push(placed.branch);
        batch.new.push(registered);
        let incarnation = self.state.incarnation;
        Ok(Receipt {
            effect: id,
            token: Some(Token { incarnation, number: id.0 }),
            created: true,
            state: EffectState::Live,
            outcome: Outcome::Unknown,
        })
    }

    /// Observations of the branch since its last registration ride along with its first new item.
    fn riding(
        &mut self,
        batch: &Batch,
        branch: BranchId,
        observed: &[Observed],
    ) -> Ruling<Vec<Observation>> {
        if batch.ridden.contains(&branch) {
            return Ok(Vec::new());
        }
        let mut riding = Vec::new();
        for observed in observed.iter().filter(|observed| observed.branch == branch) {
            riding.extend(self.renew(branch, &observed.observations)?);
        }
        Ok(riding)
    }

    /// The first effect of a known idempotency key, if the content is the same.
    fn known(
        &mut self,
        batch: &Batch,
        placed: &Placed,
        asked: &mut Vec<(BranchId, EffectId)>,
    ) -> Ruling<Option<Receipt>> {
        let Some(key) = &placed.call.idempotency_key else { return Ok(None) };
        if let Some(place) = batch.keys.get(key) {
            let effect = batch.items[*place];
            let first =
                batch.new.iter().find(|first| first.call.idempotency_key.as_ref() == Some(key));
            if let Some(first) = first {
                same_content(effect, first, placed)?;
                let own = first.branch == placed.branch;
                if !own {
                    asked.push((placed.branch, effect));
                }
                let incarnation = self.state.incarnation;
                let token = Token { incarnation, number: effect.0 };
                return Ok(Some(Receipt {
                    effect,
                    token: own.then_some(token),
                    created: false,
                    state: EffectState::Live,
                    outcome: Outcome::Unknown,
                }));
            }
        }
        let Some(effect) = self.history.known_key(key)? else { return Ok(None) };
        let event = self.history.event(effect.0)?;
        if self.forgotten(effect)? {
            return Ok(None);
        }
        let first = match event {
            Some(Event::Registered(first)) => first,
            Some(Event::ArtifactCreated { .. }) => {
                return Err(Refusal::IdempotencyConflict { effect, differs: "kind" }.into());
            }
            _ => return Ok(None),
        };
        same_content(effect, &first, placed)?;
        if let Some(known) = self.state.effects.get(effect) {
            let own = known.branch == placed.branch;
            if !own && known.is_live() {
                asked.push((placed.branch, effect));
            }
            return Ok(Some(Receipt {
                effect,
                token: own.then_some(known.token),
                created: false,
                state: known.shown_state(),
                outcome: known.outcome,
            }));
        }
        self.known_and_gone(effect, &first, placed).map(Some)
    }

    /// The answer for a known key whose effect memory has let go. That of a committed one costs no
    /// scan, unless its branch has changed hands since.
    fn known_and_gone(
        &self,
        effect: EffectId,
        first: &Registered,
        placed: &Placed,
    ) -> Ruling<Receipt> {
        let (state, outcome) = match self.history.fate(effect)? {
            Some(Fate::Committed | Fate::Compensated) => (EffectState::Committed, Outcome::Done),
            Some(Fate::Doomed) => {
                let story = self.story(effect)?;
                (EffectState::Doomed, story.map_or(Outcome::Unknown, |story| story.outcome))
            }
            Some(Fate::Void) | None => (EffectState::Void, Outcome::NotRun),
        };
        let own = first.branch == placed.branch;
        let merged = !own && self.history.ended(first.branch)?.is_some_and(|ended| ended.merged);
        let (incarnation, number) = (placed.token.incarnation, placed.token.number);
        let token = if merged {
            // It may be this branch's by now.
            let owned = self.token_of_gone(effect)?;
            owned.filter(|(owner, _)| *owner == placed.branch).map(|(_, token)| token)
        } else if !own {
            None
        } else if incarnation == first.token.incarnation && number < effect.0 {
            Some(Token { incarnation, number: effect.0 })
        } else {
            self.token_of_gone(effect)?.map(|(_, token)| token)
        };
        Ok(Receipt { effect, token, created: false, state, outcome })
    }

    /// Whether a key is past its retention, which counts from the registration. What is not settled
    /// keeps its key however old it is.
    pub(super) fn forgotten(&self, effect: EffectId) -> Ruling<bool> {
        let Some(retention_ms) = self.state.policy.key_retention_ms else { return Ok(false) };
        let open = self.state.artifacts.get(crate::model::ArtifactId(effect.0)).is_some()
            || self.state.effects.get(effect).is_some_and(|known| {
                known.state != EffectState::Committed || known.outcome == Outcome::Unknown
            });
        let Some(registered_ms) = self.history.time_ms(effect.0)?.filter(|_| !open) else {
            return Ok(false);
        };
        Ok(self.now_ms >= registered_ms.saturating_add(retention_ms))
    }

    /// Asking for another branch's effect by its key is an observation of it (C10).
    fn observe_known(&mut self, branch: BranchId, effect: EffectId) {
        if self.state.live_effect(effect).is_none() || !self.state.branches.contains_key(&branch) {
            return;
        }
        let observation = Observation {
            key: Key::default(),
            version: None,
            writers: vec![effect],
            at: 0,
            voids: Vec::new(),
        };
        self.emit(Event::Observed { branch, observations: vec![observation] });
    }
}

/// One idempotency key stands for one tool and one content: arguments, or the caller's fingerprint.
fn same_content(effect: EffectId, first: &Registered, placed: &Placed) -> Ruling<()> {
    if first.call.tool != placed.call.tool {
        return Err(Refusal::IdempotencyConflict { effect, differs: "tool" }.into());
    }
    let same = match (&first.call.fingerprint, &placed.call.fingerprint) {
        (Some(first), Some(now)) => first == now,
        (None, None) => first.call.args == placed.call.args,
        _ => false,
    };
    if same { Ok(()) } else { Err(Refusal::IdempotencyConflict { effect, differs: "args" }.into()) }
}

/// Names the item of a batch that was refused.
fn at(stop: Stop, index: usize, length: usize) -> Stop {
    match stop {
        Stop::Refused { refusal, .. } => {
            Stop::Refused { refusal, index: (length > 1).then_some(index) }
        }
        Stop::Unreadable(error) => Stop::Unreadable(error),
    }
}
