//! Metrics: counted from the log when somebody asks, so that nothing is kept for them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::ControlFlow;

use super::EffectStore;
use crate::codec::{Header, Record};
use crate::error::Error;
use crate::log::corrupted;
use crate::model::{
    CauseKind, EffectId, Event, FailureKind, Metrics, RollbackId, RootCause, Spread,
    StorageMeasures,
};
use crate::storage::ReadView;

/// The window: the last 30 days.
pub const WINDOW_MS: u64 = 30 * 24 * 3_600_000;

/// The window's most records; a busy store's window is shorter than 30 days.
pub const WINDOW_RECORDS: u64 = 1_000_000;

const HOUR_MS: f64 = 3_600_000.0;

/// A call that may come again: its tool and the hash of its arguments.
type Call = (String, [u8; 32]);

#[derive(Default)]
struct Count {
    metrics: Metrics,
    registered: BTreeMap<EffectId, (u64, Call, f64)>,
    lost_calls: HashSet<Call>,
    lost: BTreeSet<EffectId>,
    cascades: Vec<f64>,
    secondary: u64,
    lags: Vec<f64>,
    rollbacks: BTreeMap<RollbackId, u64>,
    finished: BTreeMap<RollbackId, f64>,
    /// The newest cause of each rollback, with its record: it counts.
    causes: BTreeMap<RollbackId, (u64, RootCause)>,
    waived: BTreeSet<RollbackId>,
    /// Effects whose attempt goes on.
    claimed: BTreeSet<EffectId>,
}

#[allow(clippy::cast_precision_loss)] // Milliseconds and counts are far below 2^53.
impl Count {
    fn hear(&mut self, seq: u64, header: &Header) {
        let storms = &mut self.metrics.storms;
        match &header.event {
            Event::Registered(registered) => {
                storms.registered += 1;
                let call = (registered.call.tool.clone(), registered.call.args.hash);
                storms.repeats += u64::from(self.lost_calls.contains(&call));
                let cost = registered.call.cost.unwrap_or(0.0);
                self.registered.insert(EffectId(seq), (header.time_ms, call, cost));
            }
            Event::NotRun { .. } => storms.void += 1,
            Event::Refused { .. } => storms.refused += 1,
            Event::Fenced { members, .. } => {
                storms.committed += members.len() as u64;
                for id in members.iter() {
                    if let Some((at, _, _)) = self.registered.get(&id) {
                        self.lags.push(header.time_ms.saturating_sub(*at) as f64);
                    }
                }
            }
            Event::Doomed(doom) => {
                storms.doomed += doom.members.len() as u64;
                self.secondary += (doom.members.len() - doom.direct.len()) as u64;
                self.cascades.push(doom.members.len() as f64);
                doom.members.iter().for_each(|id| self.lose(id));
                if doom.rollback {
                    self.rollbacks.insert(RollbackId(seq), header.time_ms);
                }
            }
            Event::RollbackRequested(request) if request.of.is_none() => {
                self.rollbacks.insert(RollbackId(seq), header.time_ms);
                self.metrics.rollbacks.governed += 1;
            }
            Event::RollbackStarted(started) => {
                for id in
                    started.effects.iter().map(|known| known.effect).chain(started.held.iter())
                {
                    self.lose(id);
                }
            }
            _ => self.hear_undo(seq, header),
        }
    }

    fn hear_undo(&mut self, seq: u64, header: &Header) {
        let rollbacks = &mut self.metrics.rollbacks;
        match &header.event {
            Event::StepClaimed { effect, .. } => {
                rollbacks.attempts += 1;
                self.claimed.insert(*effect);
            }
            // A step that nobody was at, such as a denied one, fails without an attempt. Where there
            // is no handler nothing was attempted, either.
            Event::StepFailed { effect, kind, .. } => {
                let tried = self.claimed.remove(effect);
                let ran = *kind != FailureKind::NoHandler;
                rollbacks.attempts -= u64::from(tried && !ran);
                rollbacks.failed_attempts += u64::from(tried && ran);
            }
            Event::StepCompleted { effect, .. }
            | Event::StepReleased { effect, .. }
            | Event::StepDiscarded { effect } => {
                self.claimed.remove(effect);
            }
            Event::RollbackFinished { rollback, .. } => {
                if let Some(at) = self.rollbacks.get(rollback) {
                    let took = header.time_ms.saturating_sub(*at) as f64;
                    self.finished.insert(*rollback, took);
                }
            }
            Event::RootCauseRecorded(cause) => {
                self.causes.insert(cause.rollback, (seq, cause.as_ref().clone()));
            }
            Event::RemedyWaived { rollback, .. } => {
                self.waived.insert(*rollback);
            }
            _ => {}
        }
    }

    fn lose(&mut self, id: EffectId) {
        if let Some((_, call, cost)) = self.registered.get(&id)
            && self.lost.insert(id)
        {
            self.metrics.storms.wasted_cost += cost;
            self.lost_calls.insert(call.clone());
        }
    }

    fn finish(mut self, since_ms: u64, until_ms: u64, cut: bool) -> Metrics {
        let storms = &mut self.metrics.storms;
        let decided = storms.committed + storms.doomed;
        storms.commit_efficiency = share(storms.committed, decided, 1.0);
        storms.secondary_ratio = share(self.secondary, storms.doomed, 0.0);
        storms.cascade = Spread::of(self.cascades);
        storms.commit_lag_ms = Spread::of(self.lags);
        let rollbacks = &mut self.metrics.rollbacks;
        rollbacks.count = self.rollbacks.len() as u64;
        let months = until_ms.saturating_sub(since_ms).max(1) as f64 / WINDOW_MS as f64;
        // A store that is younger than the window has had no month yet, so its count is the month's.
        rollbacks.per_month = rollbacks.count as f64 / if cut { months } else { 1.0 };
        let closed = |id: &&RollbackId| {
            let remedied = |(_, cause): &(u64, RootCause)| cause.remedy.is_some();
            self.causes.get(id).is_some_and(|cause| remedied(cause) || self.waived.contains(id))
        };
        let finished = self.finished.len() as u64;
        rollbacks.in_review = finished - self.finished.keys().filter(closed).count() as u64;
        let quick = self.finished.values().filter(|took| **took <= HOUR_MS).count() as u64;
        rollbacks.within_an_hour = (finished > 0).then(|| share(quick, finished, 1.0));
        rollbacks.time_to_rollback_ms = Spread::of(self.finished.into_values().collect());
        let mut causes: Vec<(u64, RootCause)> = self.causes.into_values().collect();
        causes.sort_unstable_by_key(|(seq, _)| *seq);
        let repeated = causes.iter().enumerate().filter(|(place, (_, cause))| {
            causes[..*place].iter().any(|(_, known)| known.repeats(cause))
        });
        rollbacks.repeated_causes = repeated.count() as u64;
        rollbacks.root_causes = CauseKind::ALL
            .iter()
            .map(|kind| {
                let of_kind = causes.iter().filter(|(_, cause)| cause.category == *kind);
                (*kind, of_kind.count() as u64)
            })
            .collect();
        Metrics { since_ms, until_ms, ..self.metrics }
    }
}

#[allow(clippy::cast_precision_loss)] // Counts of records are far below 2^53.
fn share(part: u64, whole: u64, none: f64) -> f64 {
    if whole == 0 { none } else { part as f64 / whole as f64 }
}

fn time_of(view: &dyn ReadView, seq: u64) -> Result<u64, Error> {
    let bytes = view.record(seq)?.ok_or_else(|| corrupted(format!("record {seq}")))?;
    let header = Record::decode_header(&bytes)
        .map_err(|error| corrupted(format!("record {seq}: {error}")))?;
    Ok(header.time_ms)
}

/// The first record that is not older than a moment; records are in the order of time.
fn first_since(view: &dyn ReadView, head: u64, moment_ms: u64) -> Result<u64, Error> {
    let (mut low, mut high) = (1, head + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if time_of(view, middle)? < moment_ms {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

impl EffectStore {
    /// Measures the store. Storms and rollbacks are counted over the last 30 days of the log, or its
    /// last million records if these are fewer: that scan is the cost, and no lock is held for it.
    /// The rest is read from memory.
    ///
    /// ```
    /// # fn main() -> Result<(), effectstore::Error> {
    /// # use effectstore::{EffectStore, Options};
    /// let store = EffectStore::in_memory(Options::default())?;
    /// let metrics = store.metrics()?;
    /// assert_eq!((metrics.storms.registered, metrics.storms.commit_efficiency), (0, 1.0));
    /// assert_eq!(metrics.storage.records, 1, "the record of the store's making");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn metrics(&self) -> Result<Metrics, Error> {
        let until_ms = self.now_ms();
        let view = self.engine().view()?;
        let head = view.head()?;
        let by_time = first_since(view.as_ref(), head, until_ms.saturating_sub(WINDOW_MS))?;
        let from = by_time.max(head.saturating_sub(WINDOW_RECORDS) + 1).min(head.max(1));
        let since_ms = if head == 0 { until_ms } else { time_of(view.as_ref(), from)? };
        let mut count = Count::default();
        let mut failed = None;
        view.scan(from, &mut |seq, bytes| match Record::decode_header(bytes) {
            Ok(header) => {
                count.hear(seq, &header);
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(corrupted(format!("record {seq}: {error}")));
                ControlFlow::Break(())
            }
        })?;
        drop(view);
        if let Some(error) = failed {
            return Err(Error::Storage(error));
        }
        let mut metrics = count.finish(since_ms, until_ms, from > by_time);
        metrics.from_record = from;
        self.measure_now(&mut metrics)?;
        Ok(metrics)
    }

    fn measure_now(&self, metrics: &mut Metrics) -> Result<(), Error> {
        let storage = self.engine().stats()?;
        let core = self.engine().lock()?;
        let state = &core.state;
        let open = state.rollbacks.values().filter(|rollback| rollback.open);
        metrics.rollbacks.open = open.count() as u64 + state.requests.len() as u64;
        let pending = state.approvals.values().filter(|known| {
            known.info.state == crate::model::ApprovalState::Pending
                && matches!(known.info.subject, crate::model::Subject::Rollback(_))
        });
        metrics.rollbacks.awaiting_approval = pending.count() as u64;
        metrics.storage = StorageMeasures {
            records: storage.head,
            segments: storage.segments,
            live_effects: state.live,
            effects_in_memory: state.effects.len() as u64,
            keys_in_memory: state.keys.len() as u64,
            branches_in_memory: state.branches.len() as u64,
            open_alerts: state.alerts.len() as u64,
            file_bytes: storage.file_bytes,
            used_bytes: storage.used_bytes,
            map_bytes: storage.map_size_bytes,
            readers: storage.readers,
            oldest_reader_transactions: storage.oldest_reader.map_or(0, |r| r.transactions_behind),
        };
        Ok(())
    }
}
