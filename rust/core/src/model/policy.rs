//! Limits and policy: data in the log, read by the decisions.

use minicbor::{Decode, Encode};

/// How often and how patiently an inverse is tried.
///
/// ```
/// let retry = effectstore::model::Retry::default();
/// assert_eq!(retry.max_attempts, 5);
/// ```
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Retry {
    /// Attempts before the inverse counts as failed; at least 1.
    #[n(0)]
    pub max_attempts: u32,
    /// Wait before the second attempt, in milliseconds.
    #[n(1)]
    pub delay_ms: u64,
    /// Factor by which the wait grows with every further attempt.
    #[n(2)]
    pub backoff: f64,
    /// Longest wait, in milliseconds.
    #[n(3)]
    pub max_delay_ms: u64,
    /// Share of the wait by which it varies, from 0 to 1. The variation is derived from the step's
    /// key, so that deciding again gives the same moment.
    #[n(4)]
    pub jitter: f64,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { max_attempts: 5, delay_ms: 1_000, backoff: 2.0, max_delay_ms: 60_000, jitter: 0.2 }
    }
}

/// What a failed inverse does to the rest of the order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum OnFailure {
    /// Blocks only what the failed inverse's effect rested on or overwrote.
    #[default]
    #[n(0)]
    Halt,
    /// Waives the order of dependencies, never the order of writers of one key.
    #[n(1)]
    Continue,
}

/// When an irreversible effect may act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum IrreversibleRule {
    /// After its fence and a recorded approval.
    #[default]
    #[n(0)]
    Approval,
    /// After its fence.
    #[n(1)]
    AfterFence,
}

/// Who may commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Authority {
    /// A branch commits its own work.
    #[default]
    #[n(0)]
    Owner,
    /// Branches seal; only `reconcile` commits.
    #[n(1)]
    Reconcile,
}

/// Rules of the store that its owners may set. It lives in the log.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Policy {
    /// Refuse effects that have no inverse and are not declared irreversible (I3).
    #[n(0)]
    pub require_inverse: bool,
    /// Most keys that a fully reversible rollback may write back without a person.
    #[n(1)]
    pub auto_keys: u64,
    /// When an irreversible effect may act.
    #[n(2)]
    pub irreversible: IrreversibleRule,
    /// Who may commit.
    #[n(3)]
    pub authority: Authority,
    /// What a failed inverse does to the rest.
    #[n(4)]
    pub on_failure: OnFailure,
    /// Default retry of an inverse.
    #[n(5)]
    pub retry: Retry,
    /// Time for a downstream agent to confirm, in milliseconds.
    #[n(6)]
    pub confirm_within_ms: u64,
    /// How long idempotency keys are kept, in milliseconds; for ever by default.
    #[n(7)]
    pub key_retention_ms: Option<u64>,
    /// Whoever caused a rollback may not approve it.
    #[n(8)]
    pub separation_of_duties: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            require_inverse: true,
            auto_keys: 5,
            irreversible: IrreversibleRule::default(),
            authority: Authority::default(),
            on_failure: OnFailure::default(),
            retry: Retry::default(),
            confirm_within_ms: 300_000,
            key_retention_ms: None,
            separation_of_duties: false,
        }
    }
}

/// Limits of the store (I20). Beyond one, a registration is refused with what to wait for.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Limits {
    /// Bytes of one payload.
    #[n(0)]
    pub payload_bytes: u64,
    /// Live effects in the store.
    #[n(1)]
    pub live_effects: u64,
    /// Direct dependencies of one effect.
    #[n(2)]
    pub dependencies: u64,
    /// Keys read or written by one effect.
    #[n(3)]
    pub keys: u64,
    /// Bytes of one key or idempotency key.
    #[n(4)]
    pub key_bytes: u64,
    /// Bytes of a branch, agent or tool name.
    #[n(5)]
    pub name_bytes: u64,
    /// Live writers of one key that do not rest on one another.
    #[n(6)]
    pub live_writers_per_key: u64,
    /// Live effects that rest directly on one effect.
    #[n(7)]
    pub readers_per_version: u64,
    /// Effects in one closure.
    #[n(8)]
    pub closure: Option<u64>,
    /// Length of the longest chain of live effects.
    #[n(9)]
    pub depth: Option<u64>,
    /// Live effects that rest on one effect, directly or not.
    #[n(10)]
    pub fan_out: Option<u64>,
    /// Records in one transaction.
    #[n(11)]
    pub batch_records: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            payload_bytes: 1 << 20,
            live_effects: 1_000_000,
            dependencies: 4_096,
            keys: 1_024,
            key_bytes: 65_536,
            name_bytes: 1_024,
            live_writers_per_key: 64,
            readers_per_version: 100_000,
            closure: None,
            depth: None,
            fan_out: None,
            batch_records: 100_000,
        }
    }
}
