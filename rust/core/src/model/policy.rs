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

/// How far a set of steps can be undone: its worst member decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum Reach {
    /// In full.
    #[default]
    #[n(0)]
    Full,
    /// Something stays behind.
    #[n(1)]
    Partial,
    /// It can be answered, and not undone.
    #[n(2)]
    Irreversible,
    /// No inverse is known.
    #[n(3)]
    NotCompensable,
}

/// One row of the approval matrix. The first that fits decides.
///
/// ```
/// use effectstore::model::{Policy, Reach};
/// let policy = Policy::default();
/// assert_eq!(policy.approval(Reach::Full, 5), None, "a small full rollback runs by itself");
/// assert_eq!(policy.approval(Reach::Full, 6), Some(false), "a large one asks a person");
/// assert_eq!(policy.approval(Reach::Irreversible, 1), Some(true), "with a written reason");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ApprovalRule {
    /// The sets that it is about.
    #[n(0)]
    pub reach: Reach,
    /// Only sets that write at most so many keys; any number where it is absent.
    #[n(1)]
    pub at_most: Option<u64>,
    /// The same, with the policy's `auto_keys` as the number.
    #[n(2)]
    pub auto_keys: bool,
    /// Whether a person decides; if not, it runs by itself.
    #[n(3)]
    pub person: bool,
    /// Whether the person must give a written reason.
    #[n(4)]
    pub reason: bool,
}

impl ApprovalRule {
    const fn of(reach: Reach, auto_keys: bool, person: bool, reason: bool) -> Self {
        ApprovalRule { reach, at_most: None, auto_keys, person, reason }
    }

    /// The matrix of the rollback process.
    pub const DEFAULT: [ApprovalRule; 5] = [
        ApprovalRule::of(Reach::Full, true, false, false),
        ApprovalRule::of(Reach::Full, false, true, false),
        ApprovalRule::of(Reach::Partial, false, true, false),
        ApprovalRule::of(Reach::Irreversible, false, true, true),
        ApprovalRule::of(Reach::NotCompensable, false, true, true),
    ];
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
    /// The approval matrix; absent, [`ApprovalRule::DEFAULT`].
    #[n(9)]
    pub rules: Option<Vec<ApprovalRule>>,
}

impl Policy {
    /// The approval matrix in force.
    pub fn matrix(&self) -> &[ApprovalRule] {
        self.rules.as_deref().unwrap_or(&ApprovalRule::DEFAULT)
    }

    /// Whether a person must approve steps of this reach over so many keys, and if so whether with a
    /// written reason. What no row is about needs both.
    pub fn approval(&self, reach: Reach, keys: u64) -> Option<bool> {
        let fits = |rule: &&ApprovalRule| {
            let bound = if rule.auto_keys { Some(self.auto_keys) } else { rule.at_most };
            rule.reach == reach && bound.is_none_or(|bound| keys <= bound)
        };
        match self.matrix().iter().find(fits) {
            Some(rule) => rule.person.then_some(rule.reason),
            None => Some(true),
        }
    }

    /// Beyond so many keys every number is alike to the matrix.
    pub fn most_keys(&self) -> u64 {
        let bound = |rule: &ApprovalRule| {
            if rule.auto_keys { Some(self.auto_keys) } else { rule.at_most }
        };
        self.matrix().iter().filter_map(bound).max().unwrap_or(0)
    }
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
            rules: None,
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
