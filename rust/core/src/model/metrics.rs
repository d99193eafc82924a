//! Measures of the store: storms, rollbacks, storage.

use super::CauseKind;

/// How a measure is spread over a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    /// Number of values.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Half of them are at most so large.
    pub median: f64,
    /// 95 of 100 of them are at most so large.
    pub p95: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of values in any order.
    ///
    /// ```
    /// use effectstore::model::Spread;
    /// let spread = Spread::of(vec![4.0, 1.0, 1.0, 2.0]);
    /// assert_eq!((spread.count, spread.mean, spread.median, spread.max), (4, 2.0, 1.0, 4.0));
    /// assert_eq!(Spread::of(Vec::new()), Spread::default());
    /// ```
    #[allow(clippy::cast_precision_loss)] // Counts of records are far below 2^53.
    pub fn of(mut values: Vec<f64>) -> Spread {
        values.sort_unstable_by(f64::total_cmp);
        let Some(max) = values.last().copied() else { return Spread::default() };
        let at = |share: usize| values[(values.len() * share).div_ceil(100).max(1) - 1];
        Spread {
            count: values.len() as u64,
            mean: values.iter().sum::<f64>() / values.len() as f64,
            median: at(50),
            p95: at(95),
            max,
        }
    }
}

/// How much of the speculative work stood, over the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Storms {
    /// Effects registered.
    pub registered: u64,
    /// Effects committed.
    pub committed: u64,
    /// Effects doomed.
    pub doomed: u64,
    /// Effects that never ran.
    pub void: u64,
    /// Committed effects for each decided one; 1 where nothing was decided.
    pub commit_efficiency: f64,
    /// Effects that fell with one decision.
    pub cascade: Spread,
    /// Doomed effects that were not named but dragged along, for each doomed one.
    pub secondary_ratio: f64,
    /// What doomed and compensated effects cost, as their callers said.
    pub wasted_cost: f64,
    /// Milliseconds from a registration to its fence.
    pub commit_lag_ms: Spread,
    /// Calls registered again after the same call, with the same arguments, was doomed.
    pub repeats: u64,
    /// Registrations and other calls that were turned away and audited.
    pub refused: u64,
}

/// The process of rolling back, over the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rollbacks {
    /// Rollbacks decided or asked for.
    pub count: u64,
    /// The same for 30 days.
    pub per_month: f64,
    /// Those that undo committed effects.
    pub governed: u64,
    /// Those that are not finished now, whenever they were decided.
    pub open: u64,
    /// Requests and plans that wait for a person now.
    pub awaiting_approval: u64,
    /// Finished ones of the window that owe a root cause or a remedy.
    pub in_review: u64,
    /// Milliseconds from the decision to the end.
    pub time_to_rollback_ms: Spread,
    /// Share of the finished ones that took at most an hour; `None` where none is finished.
    pub within_an_hour: Option<f64>,
    /// Attempts of inverses. Where no handler was found nothing was attempted.
    pub attempts: u64,
    /// Failed attempts.
    pub failed_attempts: u64,
    /// Root causes by kind, the newest of each rollback.
    pub root_causes: Vec<(CauseKind, u64)>,
    /// Rollbacks whose root cause an earlier one had.
    pub repeated_causes: u64,
}

/// What the store holds and who reads it, now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageMeasures {
    /// Records of the log.
    pub records: u64,
    /// Segments of the log.
    pub segments: u64,
    /// Live effects.
    pub live_effects: u64,
    /// Effects in memory: live ones, and those whose undo or run is not finished.
    pub effects_in_memory: u64,
    /// Keys in memory.
    pub keys_in_memory: u64,
    /// Branches in memory.
    pub branches_in_memory: u64,
    /// Alerts that nobody has acknowledged.
    pub open_alerts: u64,
    /// Bytes of the data file.
    pub file_bytes: u64,
    /// Bytes of it that the newest state may use.
    pub used_bytes: u64,
    /// Size of the memory map, in bytes.
    pub map_bytes: u64,
    /// Open views, over all processes.
    pub readers: u32,
    /// Transactions that were committed since the oldest view began: space that it keeps.
    pub oldest_reader_transactions: u64,
}

/// Measures of the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics {
    /// The first record of the window.
    pub from_record: u64,
    /// When the window begins, in milliseconds of the store's clock.
    pub since_ms: u64,
    /// When it ends: now.
    pub until_ms: u64,
    /// How much of the speculative work stood.
    pub storms: Storms,
    /// The process of rolling back.
    pub rollbacks: Rollbacks,
    /// The store itself.
    pub storage: StorageMeasures,
}
