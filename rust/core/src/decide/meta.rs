//! The store itself: creation, settings, the operator's stop, alerts seen.

use super::{Ruling, Turn};
use crate::model::{Command, Event, Limits, Policy, Refusal, Reply, Retry};

fn check_limits(limits: &Limits) -> Result<(), Refusal> {
    let zero = [
        ("payload_bytes", limits.payload_bytes),
        ("live_effects", limits.live_effects),
        ("dependencies", limits.dependencies),
        ("keys", limits.keys),
        ("key_bytes", limits.key_bytes),
        ("name_bytes", limits.name_bytes),
        ("live_writers_per_key", limits.live_writers_per_key),
        ("readers_per_version", limits.readers_per_version),
        ("batch_records", limits.batch_records),
    ];
    for (option, value) in zero {
        if value == 0 {
            return Err(Refusal::Options { option, reason: "a limit is at least 1".into() });
        }
    }
    if limits.payload_bytes > 16 << 20 {
        return Err(Refusal::Options {
            option: "payload_bytes",
            reason: "payloads above 16 MiB belong outside of the store, named by their hash".into(),
        });
    }
    Ok(())
}

/// Refuses a rule of retry that never tries, or waits for a number that is none.
pub(super) fn check_retry(retry: &Retry) -> Result<(), Refusal> {
    if retry.max_attempts == 0
        || !retry.backoff.is_finite()
        || retry.backoff < 1.0
        || !(0.0..=1.0).contains(&retry.jitter)
    {
        return Err(Refusal::Options {
            option: "retry",
            reason: "max_attempts is at least 1, backoff at least 1, jitter from 0 to 1".into(),
        });
    }
    Ok(())
}

fn check_policy(policy: &Policy) -> Result<(), Refusal> {
    check_retry(&policy.retry)?;
    if policy.rules.as_ref().is_some_and(Vec::is_empty) {
        return Err(Refusal::Options {
            option: "rules",
            reason: "a matrix has at least one row; leave it out for the default one".into(),
        });
    }
    Ok(())
}

impl Turn<'_> {
    pub(super) fn meta(&mut self, command: &Command) -> Ruling<Reply> {
        match command {
            // Two processes may find the new store empty at once; the first one's settings hold.
            Command::Create { .. } if self.state.head > 0 => {}
            Command::Create { store_id, limits, policy } => {
                check_limits(limits)?;
                check_policy(policy)?;
                self.emit(Event::Created {
                    store_id: *store_id,
                    limits: limits.clone(),
                    policy: policy.clone(),
                });
            }
            Command::Configure { by, limits, policy } => {
                if let Some(limits) = limits {
                    check_limits(limits)?;
                }
                if let Some(policy) = policy {
                    check_policy(policy)?;
                }
                self.emit(Event::Configured {
                    by: by.clone(),
                    limits: limits.clone(),
                    policy: policy.clone(),
                });
            }
            Command::Freeze { by, reason } => {
                self.emit(Event::Frozen { by: by.clone(), reason: reason.clone() });
            }
            Command::Unfreeze { by } if self.state.frozen.is_some() => {
                self.emit(Event::Unfrozen { by: by.clone() });
            }
            Command::Acknowledge { alert, by } => {
                if self.state.alerts.contains_key(&alert.0) {
                    self.emit(Event::AlertAcknowledged { alert: *alert, by: by.clone() });
                } else if !matches!(self.history.event(alert.0)?, Some(Event::Alerted { .. })) {
                    return Err(Refusal::no_such("alert", alert.0).into());
                }
            }
            Command::Reopen => {
                self.emit(Event::Reopened);
            }
            Command::Restore => {
                let incarnation = self.state.incarnation + 1;
                self.emit(Event::Restored { incarnation });
            }
            _ => {}
        }
        Ok(Reply::Nothing)
    }
}
