//! The outbox: committed deferred effects, handed out to run (section 3, Mode).

use super::step::hex;
use super::{Ruling, Turn};
use crate::model::{DeliveryInfo, EffectId, EffectState, Event, Outcome, Refusal, Reply, Token};
use crate::state::Effect;

impl Turn<'_> {
    /// Hands out the first effect that may run now, at least once and under a stable key.
    pub(super) fn deliver(
        &mut self,
        agent: &str,
        tools: Option<&[String]>,
        lease_ms: u64,
    ) -> Ruling<Reply> {
        if lease_ms == 0 {
            let reason = "a lease is longer than nothing".into();
            return Err(Refusal::Options { option: "lease", reason }.into());
        }
        self.state.tidy();
        let waiting: Vec<EffectId> = self.state.outbox.iter().copied().collect();
        for effect in waiting {
            if !self.may_deliver(effect, agent, tools)? {
                continue;
            }
            let until_ms = self.now_ms.saturating_add(lease_ms);
            let rests_on = self.resolve_reads(effect);
            self.emit(Event::Delivered { effect, agent: agent.to_owned(), until_ms, rests_on });
            return Ok(self.delivery_reply(effect));
        }
        Ok(Reply::Delivery(None))
    }

    fn may_deliver(&self, id: EffectId, agent: &str, tools: Option<&[String]>) -> Ruling<bool> {
        let Some(effect) = self.state.effects.get(id) else { return Ok(false) };
        let held = effect.delivery.as_ref().is_some_and(|held| held.until_ms.is_some());
        let known = tools.is_none_or(|tools| tools.iter().any(|tool| **tool == *effect.tool));
        if held || !known || effect.outcome != Outcome::Unknown {
            return Ok(false);
        }
        if agent != "*" && agent != self.agent_of(effect)? {
            return Ok(false);
        }
        let approved = !self.needs_run_approval(id) || self.run_approved(id);
        Ok(approved && self.keys_are_quiet(effect) && self.rests_on_done(effect)?)
    }

    /// Deferred effects that it rests on have run. Only a deferred effect rests on one, and directly;
    /// the graph holds committed effects no more, so its registration is asked.
    fn rests_on_done(&self, effect: &Effect) -> Ruling<bool> {
        let Some(Event::Registered(registered)) = self.history.event(effect.id.0)? else {
            return Ok(true);
        };
        let waits = |id: &EffectId| {
            self.state
                .effects
                .get(*id)
                .is_some_and(|on| on.is_deferred() && on.outcome != Outcome::Done)
        };
        Ok(!registered.rests_on.iter().any(waits))
    }

    /// No key that it writes is dirty or busy, and each key that it reads without a version shows a
    /// committed value (rule `committed`).
    fn keys_are_quiet(&self, effect: &Effect) -> bool {
        let busy = |key| self.state.busy_writers(key).iter().any(|writer| *writer != effect.id);
        let written =
            effect.writes.iter().all(|key| self.state.dirty_writers(key).is_empty() && !busy(key));
        written
            && effect.reads.iter().filter(|read| read.version.is_none()).all(|read| {
                let writers = self.state.keys.get(&read.key).map(|entry| &entry.writers);
                self.state.dirty_writers(&read.key).is_empty()
                    && writers.into_iter().flatten().all(|writer| {
                        *writer == effect.id
                            || self.state.effects.get(*writer).is_none_or(|known| {
                                !known.is_live() && (known.closed || !known.is_running())
                            })
                    })
            })
    }

    /// The committed writers in memory that its reads without a version rest on.
    fn resolve_reads(&self, id: EffectId) -> Vec<EffectId> {
        let Some(effect) = self.state.effects.get(id) else { return Vec::new() };
        let mut writers: Vec<EffectId> = effect
            .reads
            .iter()
            .filter(|read| read.version.is_none())
            .filter_map(|read| self.state.keys.get(&read.key))
            .flat_map(|entry| entry.writers.iter().copied())
            .filter(|writer| {
                *writer != id
                    && self.state.effects.get(*writer).is_some_and(|known| {
                        known.state == EffectState::Committed && known.is_writer()
                    })
            })
            .collect();
        writers.sort_unstable();
        writers.dedup();
        writers
    }

    /// Extends a delivery, or gives it back.
    pub(super) fn hold_delivery(
        &mut self,
        effect: EffectId,
        token: Token,
        lease_ms: Option<u64>,
    ) -> Ruling<Reply> {
        let known = self.state.effects.get(effect);
        let holder = known.and_then(|known| known.delivery.as_ref());
        let holder = holder.filter(|held| held.until_ms.is_some()).map(|held| held.agent.clone());
        let current = known.is_some_and(|known| known.token == token) && holder.is_some();
        if !current {
            self.audit("hold_delivery", "lease_lost", effect.0, Some(token));
            return Err(Refusal::LeaseLost { step: effect, holder }.into());
        }
        let until_ms = lease_ms.map(|lease| self.now_ms.saturating_add(lease));
        self.emit(Event::DeliveryHeld { effect, until_ms });
        Ok(if until_ms.is_some() { self.delivery_reply(effect) } else { Reply::Delivery(None) })
    }

    fn delivery_reply(&self, id: EffectId) -> Reply {
        let known = self.state.effects.get(id);
        let delivery = known.and_then(|known| known.delivery.as_ref().map(|held| (known, held)));
        Reply::Delivery(delivery.map(|(effect, held)| DeliveryInfo {
            effect: id,
            idempotency_key: format!("{}/{id}", hex(&self.state.store_id)),
            attempt: held.attempts,
            lease_until_ms: held.until_ms.unwrap_or_default(),
            token: effect.token,
        }))
    }
}
