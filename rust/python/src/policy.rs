//! Limits and policy, as dicts.

use effectstore::model::{ApprovalRule, Authority, IrreversibleRule, Limits, Policy, Reach};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::{ON_FAILURES, RetryTuple, choice, retry_in, retry_out, word};

const IRREVERSIBLE_RULES: &[(&str, IrreversibleRule)] =
    &[("approval", IrreversibleRule::Approval), ("after-fence", IrreversibleRule::AfterFence)];
const AUTHORITIES: &[(&str, Authority)] =
    &[("owner", Authority::Owner), ("reconcile", Authority::Reconcile)];

const REACHES: &[(&str, Reach)] = &[
    ("full", Reach::Full),
    ("partial", Reach::Partial),
    ("irreversible", Reach::Irreversible),
    ("not_compensable", Reach::NotCompensable),
];

/// Reach, bound, whether the bound is the policy's `auto_keys`, person, reason.
type RuleTuple = (String, Option<u64>, bool, bool, bool);

fn rule_in(py: Python<'_>, raw: RuleTuple) -> PyResult<ApprovalRule> {
    let (reach, at_most, auto_keys, person, reason) = raw;
    let reach = choice(py, "rules", &reach, REACHES)?;
    Ok(ApprovalRule { reach, at_most, auto_keys, person, reason })
}

fn rule_out(rule: &ApprovalRule) -> RuleTuple {
    let reach = word(rule.reach, REACHES).to_owned();
    (reach, rule.at_most, rule.auto_keys, rule.person, rule.reason)
}

/// Limits as the façade writes them.
#[derive(FromPyObject, IntoPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct LimitsDict {
    payload_bytes: u64,
    live_effects: u64,
    dependencies: u64,
    keys: u64,
    key_bytes: u64,
    name_bytes: u64,
    live_writers_per_key: u64,
    readers_per_version: u64,
    closure: Option<u64>,
    depth: Option<u64>,
    fan_out: Option<u64>,
    batch_records: u64,
}

impl From<LimitsDict> for Limits {
    fn from(raw: LimitsDict) -> Self {
        Limits {
            payload_bytes: raw.payload_bytes,
            live_effects: raw.live_effects,
            dependencies: raw.dependencies,
            keys: raw.keys,
            key_bytes: raw.key_bytes,
            name_bytes: raw.name_bytes,
            live_writers_per_key: raw.live_writers_per_key,
            readers_per_version: raw.readers_per_version,
            closure: raw.closure,
            depth: raw.depth,
            fan_out: raw.fan_out,
            batch_records: raw.batch_records,
        }
    }
}

impl From<Limits> for LimitsDict {
    fn from(limits: Limits) -> Self {
        LimitsDict {
            payload_bytes: limits.payload_bytes,
            live_effects: limits.live_effects,
            dependencies: limits.dependencies,
            keys: limits.keys,
            key_bytes: limits.key_bytes,
            name_bytes: limits.name_bytes,
            live_writers_per_key: limits.live_writers_per_key,
            readers_per_version: limits.readers_per_version,
            closure: limits.closure,
            depth: limits.depth,
            fan_out: limits.fan_out,
            batch_records: limits.batch_records,
        }
    }
}

/// A policy as the façade writes it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct PolicyDict {
    require_inverse: bool,
    auto_keys: u64,
    irreversible: String,
    authority: String,
    on_failure: String,
    retry: RetryTuple,
    confirm_within_ms: u64,
    key_retention_ms: Option<u64>,
    separation_of_duties: bool,
    rules: Option<Vec<RuleTuple>>,
}

impl PolicyDict {
    /// The policy; `OptionsError` for a word that none of its rules has.
    pub(crate) fn policy(self, py: Python<'_>) -> PyResult<Policy> {
        Ok(Policy {
            require_inverse: self.require_inverse,
            auto_keys: self.auto_keys,
            irreversible: choice(py, "irreversible", &self.irreversible, IRREVERSIBLE_RULES)?,
            authority: choice(py, "authority", &self.authority, AUTHORITIES)?,
            on_failure: choice(py, "on_failure", &self.on_failure, ON_FAILURES)?,
            retry: retry_in(self.retry),
            confirm_within_ms: self.confirm_within_ms,
            key_retention_ms: self.key_retention_ms,
            separation_of_duties: self.separation_of_duties,
            rules: self
                .rules
                .map(|rules| rules.into_iter().map(|rule| rule_in(py, rule)).collect())
                .transpose()?,
        })
    }
}

/// The dict of a policy.
pub(crate) fn policy_out<'py>(py: Python<'py>, policy: &Policy) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    found.set_item("require_inverse", policy.require_inverse)?;
    found.set_item("auto_keys", policy.auto_keys)?;
    found.set_item("irreversible", word(policy.irreversible, IRREVERSIBLE_RULES))?;
    found.set_item("authority", word(policy.authority, AUTHORITIES))?;
    found.set_item("on_failure", word(policy.on_failure, ON_FAILURES))?;
    found.set_item("retry", retry_out(&policy.retry))?;
    found.set_item("confirm_within_ms", policy.confirm_within_ms)?;
    found.set_item("key_retention_ms", policy.key_retention_ms)?;
    found.set_item("separation_of_duties", policy.separation_of_duties)?;
    let rules: Vec<RuleTuple> = policy.matrix().iter().map(rule_out).collect();
    found.set_item("rules", rules)?;
    Ok(found)
}
