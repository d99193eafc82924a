//! Conversions of what many verbs share.

use effectstore::model::{
    ApprovalId, BlockReason, Blocker, BranchState, Call, Class, EffectId, EffectState, Escalate,
    Inverse, Key, Mode, Observation, OnConflict, OnFailure, Outcome, Overwrite, Read, ReadRule,
    Retry, RollbackId, Target, Token,
};
use effectstore::store::Payloads;
use pyo3::prelude::*;

use crate::errors::bad_option;

/// A token: incarnation and number.
pub(crate) type TokenPair = (u64, u64);
/// A key and the version that the caller vouches for.
pub(crate) type ReadPair = (Vec<u8>, Option<u64>);
/// Whether it is a branch, and the id.
pub(crate) type TargetPair = (bool, u64);
/// Attempts, first delay, backoff, longest delay, jitter.
pub(crate) type RetryTuple = (u32, u64, f64, u64, f64);
/// Calls, text for a person, deadline, deadline from the registration, compare-and-set, agent,
/// retry, artifact, limitation.
pub(crate) type InverseTuple = (
    Vec<(String, Option<Vec<u8>>)>,
    Option<String>,
    Option<u64>,
    Option<u64>,
    bool,
    Option<String>,
    Option<RetryTuple>,
    Option<String>,
    Option<String>,
);
/// Effect, branch, agent, reason.
pub(crate) type BlockerTuple = (u64, String, String, &'static str);
/// Key, version, writers, the log's head at the answer.
pub(crate) type ObservationTuple = (Vec<u8>, Option<u64>, Vec<u64>, u64);

/// The token of a pair.
pub(crate) fn token_in((incarnation, number): TokenPair) -> Token {
    Token { incarnation, number }
}

/// The pair of a token.
pub(crate) fn token_out(token: Token) -> TokenPair {
    (token.incarnation, token.number)
}

/// Effects as plain numbers.
pub(crate) fn ids(effects: &[EffectId]) -> Vec<u64> {
    effects.iter().map(|effect| effect.0).collect()
}

/// Approvals as plain numbers.
pub(crate) fn approval_ids(approvals: &[ApprovalId]) -> Vec<u64> {
    approvals.iter().map(|approval| approval.0).collect()
}

/// Rollbacks as plain numbers.
pub(crate) fn rollback_ids(rollbacks: &[RollbackId]) -> Vec<u64> {
    rollbacks.iter().map(|rollback| rollback.0).collect()
}

/// The target of a pair.
pub(crate) fn target_in((is_branch, id): TargetPair) -> Target {
    if is_branch {
        Target::Branch(effectstore::model::BranchId(id))
    } else {
        Target::Effect(EffectId(id))
    }
}

/// Reads from pairs.
pub(crate) fn reads_in(pairs: Vec<ReadPair>) -> Vec<Read> {
    pairs.into_iter().map(|(key, version)| Read { key: Key(key), version }).collect()
}

/// Pairs of reads.
pub(crate) fn reads_out(reads: Vec<Read>) -> Vec<ReadPair> {
    reads.into_iter().map(|read| (read.key.0, read.version)).collect()
}

/// Tuples of observations.
pub(crate) fn observations_out(found: Vec<Observation>) -> Vec<ObservationTuple> {
    found.into_iter().map(|seen| (seen.key.0, seen.version, ids(&seen.writers), seen.at)).collect()
}

/// Tuples of blockers.
pub(crate) fn blockers_out(blockers: Vec<Blocker>) -> Vec<BlockerTuple> {
    blockers
        .into_iter()
        .map(|blocker| {
            let reason = match blocker.reason {
                BlockReason::NoVote => "no_vote",
                BlockReason::Unknown => "unknown",
            };
            (blocker.effect.0, blocker.branch, blocker.agent, reason)
        })
        .collect()
}

/// A retry of a tuple.
pub(crate) fn retry_in(raw: RetryTuple) -> Retry {
    let (max_attempts, delay_ms, backoff, max_delay_ms, jitter) = raw;
    Retry { max_attempts, delay_ms, backoff, max_delay_ms, jitter }
}

/// The tuple of a retry.
pub(crate) fn retry_out(retry: &Retry) -> RetryTuple {
    (retry.max_attempts, retry.delay_ms, retry.backoff, retry.max_delay_ms, retry.jitter)
}

/// An inverse, with the bytes of its arguments put among the command's payloads.
pub(crate) fn inverse_in(raw: InverseTuple, payloads: &mut Payloads) -> Inverse {
    let (calls, manual, deadline_ms, deadline_after_ms, compare_and_set, agent, retry, art, limit) =
        raw;
    Inverse {
        calls: calls
            .into_iter()
            .map(|(tool, args)| Call { tool, args: args.map(|bytes| payloads.put(bytes)) })
            .collect(),
        manual,
        deadline_ms,
        deadline_after_ms,
        compare_and_set,
        agent,
        retry: retry.map(retry_in),
        artifact: art,
        limitation: limit,
    }
}

/// The tuple of an inverse and the arguments of its calls.
pub(crate) fn inverse_out(inverse: Inverse, args: Vec<Option<Vec<u8>>>) -> InverseTuple {
    (
        inverse.calls.into_iter().map(|call| call.tool).zip(args).collect(),
        inverse.manual,
        inverse.deadline_ms,
        inverse.deadline_after_ms,
        inverse.compare_and_set,
        inverse.agent,
        inverse.retry.as_ref().map(retry_out),
        inverse.artifact,
        inverse.limitation,
    )
}

/// Looks a word up; a word that is not in the table is an `OptionsError` that lists those that are.
pub(crate) fn choice<T: Copy>(
    py: Python<'_>,
    option: &str,
    word: &str,
    table: &[(&'static str, T)],
) -> PyResult<T> {
    table.iter().find(|(name, _)| *name == word).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = table.iter().map(|(name, _)| format!("{name:?}")).collect();
        bad_option(py, option, &format!("{word:?} is none of {}", names.join(", ")))
    })
}

/// The word of a value.
pub(crate) fn word<T: PartialEq + Copy>(value: T, table: &[(&'static str, T)]) -> &'static str {
    table.iter().find(|(_, held)| *held == value).map_or("unknown", |(name, _)| name)
}

/// Words of [`ReadRule`].
pub(crate) const READ_RULES: &[(&str, ReadRule)] = &[
    ("speculative", ReadRule::Speculative),
    ("sealed", ReadRule::Sealed),
    ("committed", ReadRule::Committed),
];
/// Words of [`Overwrite`].
pub(crate) const OVERWRITES: &[(&str, Overwrite)] =
    &[("guard", Overwrite::Guard), ("depend", Overwrite::Depend)];
/// Words of [`BranchState`].
pub(crate) const BRANCH_STATES: &[(&str, BranchState)] = &[
    ("open", BranchState::Open),
    ("closed", BranchState::Closed),
    ("doomed", BranchState::Doomed),
];
/// Words of [`Class`].
pub(crate) const CLASSES: &[(&str, Class)] =
    &[("full", Class::Full), ("partial", Class::Partial), ("irreversible", Class::Irreversible)];
/// Words of [`Mode`].
pub(crate) const MODES: &[(&str, Mode)] = &[("eager", Mode::Eager), ("deferred", Mode::Deferred)];
/// Words of [`EffectState`].
pub(crate) const EFFECT_STATES: &[(&str, EffectState)] = &[
    ("live", EffectState::Live),
    ("committed", EffectState::Committed),
    ("doomed", EffectState::Doomed),
    ("void", EffectState::Void),
];
/// Words of [`Outcome`].
pub(crate) const OUTCOMES: &[(&str, Outcome)] =
    &[("unknown", Outcome::Unknown), ("done", Outcome::Done), ("not_run", Outcome::NotRun)];
/// Words of [`Escalate`].
pub(crate) const ESCALATES: &[(&str, Escalate)] =
    &[("wait", Escalate::Wait), ("never", Escalate::Never)];
/// Words of [`OnConflict`].
pub(crate) const ON_CONFLICTS: &[(&str, OnConflict)] =
    &[("raise", OnConflict::Raise), ("abort", OnConflict::Abort)];
/// Words of [`OnFailure`].
pub(crate) const ON_FAILURES: &[(&str, OnFailure)] =
    &[("halt", OnFailure::Halt), ("continue", OnFailure::Continue)];
