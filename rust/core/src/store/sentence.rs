//! A record as one sentence for people, with its parts labelled and named; no payload is in it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::codec::Record;
use crate::model::{
    BranchId, Doom, EffectId, Event, Inverse, Key, Mode, Observation, Outcome, Problem, Registered,
};
use crate::storage::ReadView;

/// How many of many effects a sentence names.
const SHOWN: usize = 8;

/// Tells records of one view, and remembers how things are called.
pub(super) struct Teller<'a> {
    view: &'a dyn ReadView,
    names: RefCell<BTreeMap<u64, String>>,
}

/// A name or text that somebody gave: as it is where that is safe to show, else quoted.
pub(super) fn name(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || " _-./:@#+*".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { format!("{text:?}") }
}

fn keys<'k>(keys: impl IntoIterator<Item = &'k Key>) -> String {
    let all: Vec<String> = keys.into_iter().map(|key| name(&key.to_string())).collect();
    let noun = if all.len() == 1 { "key" } else { "keys" };
    let shown = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let more = all.len().saturating_sub(SHOWN);
    if more > 0 { format!("{noun} {shown} and {more} more") } else { format!("{noun} {shown}") }
}

fn by(who: Option<&String>) -> String {
    who.map_or_else(String::new, |who| format!(" by {}", name(who)))
}

pub(super) fn because(reason: Option<&String>) -> String {
    reason.map_or_else(String::new, |reason| format!("; reason: {reason:?}"))
}

pub(super) fn what_went_wrong(problem: &Problem) -> String {
    format!("{}: {:?}", name(&problem.error_type), problem.message)
}

/// Whoever claims for all agents gives no name of its own.
pub(super) fn worker(agent: &str) -> String {
    if agent == "*" { "a worker for any agent".to_owned() } else { name(agent) }
}

fn undo(inverse: Option<&Inverse>) -> String {
    let Some(inverse) = inverse else { return "none".to_owned() };
    if inverse.manual.is_some() {
        return "by hand".to_owned();
    }
    inverse.calls.iter().map(|call| name(&call.tool)).collect::<Vec<_>>().join(", then ")
}

#[allow(clippy::cast_precision_loss)] // A span for people.
pub(super) fn span(from_ms: u64, until_ms: u64) -> String {
    let ms = until_ms.saturating_sub(from_ms);
    if ms < 10_000 { format!("{} s", ms as f64 / 1000.0) } else { format!("{} s", ms / 1000) }
}

impl<'a> Teller<'a> {
    pub(super) fn new(view: &'a dyn ReadView) -> Self {
        Teller { view, names: RefCell::new(BTreeMap::new()) }
    }

    /// The sentence of a record.
    pub(super) fn tell(&self, seq: u64, time_ms: u64, event: &Event) -> String {
        self.of_branches(time_ms, event)
            .or_else(|| self.of_effects(seq, event))
            .or_else(|| self.of_decisions(seq, event))
            .or_else(|| self.of_steps(time_ms, event))
            .or_else(|| self.of_rollbacks(seq, event))
            .or_else(|| self.of_notices(seq, time_ms, event))
            .or_else(|| self.of_artifacts(seq, event))
            .unwrap_or_else(|| of_the_store(event))
    }

    /// What a number stands for, with what people call it.
    fn called(&self, id: u64) -> String {
        if let Some(known) = self.names.borrow().get(&id) {
            return known.clone();
        }
        let record = self.view.record(id).ok().flatten();
        let event = record.and_then(|bytes| Record::decode_header(&bytes).ok());
        let known = match event.map(|header| header.event) {
            Some(Event::Registered(known)) => format!("effect {id} ({})", name(&known.call.tool)),
            Some(Event::BranchCreated { name: known, .. }) => format!("branch {}", name(&known)),
            Some(Event::ArtifactCreated { spec, .. }) => {
                format!("artifact {id} ({})", name(&spec.name))
            }
            Some(Event::Doomed(_) | Event::RollbackRequested(_)) => format!("rollback {id}"),
            Some(Event::ApprovalRequested { .. }) => format!("approval {id}"),
            Some(Event::Intended { .. } | Event::Fenced { .. }) => format!("fence {id}"),
            Some(Event::BreakSignalled(_)) => format!("BREAK {id}"),
            Some(Event::Alerted { .. }) => format!("alert {id}"),
            Some(Event::Notified { .. }) => format!("notice {id}"),
            _ => format!("record {id}"),
        };
        self.names.borrow_mut().insert(id, known.clone());
        known
    }

    pub(super) fn effect(&self, id: EffectId) -> String {
        self.called(id.0)
    }

    pub(super) fn branch(&self, id: BranchId) -> String {
        self.called(id.0)
    }

    /// Several effects, the first of many by name.
    pub(super) fn effects(&self, ids: impl IntoIterator<Item = EffectId>) -> String {
        let mut ids = ids.into_iter();
        let shown: Vec<EffectId> = ids.by_ref().take(SHOWN).collect();
        match shown.as_slice() {
            [] => "no effects".to_owned(),
            [one] => self.effect(*one),
            _ => {
                let named = shown.iter().map(|id| self.effect(*id).replacen("effect ", "", 1));
                let named = named.collect::<Vec<_>>().join(", ");
                match ids.count() {
                    0 => format!("effects {named}"),
                    more => format!("effects {named} and {more} more"),
                }
            }
        }
    }

    fn of_branches(&self, time_ms: u64, event: &Event) -> Option<String> {
        Some(match event {
            Event::BranchCreated { name: made, agent, parent, lease_ms, .. } => {
                let parent = parent
                    .map_or_else(String::new, |id| format!(", as a child of {}", self.branch(id)));
                let lease =
                    lease_ms.map_or_else(String::new, |ms| format!("; lease: {}", span(0, ms)));
                format!(
                    "branch {} was created for agent {}{parent}{lease}",
                    name(made),
                    name(agent)
                )
            }
            Event::BranchTaken { branch, by: who, worker_gone } => {
                let gone =
                    if *worker_gone { "; its former worker is known to be gone" } else { "" };
                format!("{} was taken over{}{gone}", self.branch(*branch), by(who.as_ref()))
            }
            Event::BranchResumed { branch } => format!("{} was resumed", self.branch(*branch)),
            Event::BranchMerged { branch } => {
                format!("{} voted and was merged into its parent", self.branch(*branch))
            }
            Event::BranchLeased { branch, until_ms } => {
                let left = span(time_ms, *until_ms);
                format!("{} gave a sign of life; its lease ends in {left}", self.branch(*branch))
            }
            Event::LeaseExpired { branch } => {
                format!("the lease of {} ran out", self.branch(*branch))
            }
            Event::BranchStopped { branch, cause, closed, by: who, reason } => {
                let how = if *closed { "closed" } else { "stopped" };
                let cause = cause.map_or_else(String::new, |id| {
                    format!(", because {} is doomed or undone", self.effect(id))
                });
                let (who, why) = (by(who.as_ref()), because(reason.as_ref()));
                format!("{} was {how}{who}{cause}{why}", self.branch(*branch))
            }
            Event::Observed { branch, observations } => {
                format!("{} read {}", self.branch(*branch), self.observed(observations))
            }
            Event::ObservationRefused { branch, key, writers, rule } => format!(
                "{} read {}, which the read rule \"{}\" or a dirty key kept from it; it may have seen {}",
                self.branch(*branch),
                keys([key]),
                format!("{rule:?}").to_lowercase(),
                self.effects(writers.iter().copied())
            ),
            _ => return None,
        })
    }

    fn observed(&self, observations: &[Observation]) -> String {
        let each = observations.iter().map(|seen| {
            let of = match seen.version {
                Some(0) => " as it was before the store".to_owned(),
                Some(version) => format!(" as {} wrote it", self.effect(EffectId(version))),
                None if seen.writers.is_empty() => String::new(),
                None => format!(", written by {}", self.effects(seen.writers.iter().copied())),
            };
            format!("{}{of}", keys([&seen.key]))
        });
        each.collect::<Vec<_>>().join("; ")
    }

    fn of_effects(&self, seq: u64, event: &Event) -> Option<String> {
        Some(match event {
            Event::Registered(registered) => self.registered(seq, registered),
            Event::ObservedLate { effect, observations, .. } => {
                format!(
                    "{} read {} while it ran",
                    self.effect(*effect),
                    self.observed(observations)
                )
            }
            Event::Done { effect, inverse, rests_on, .. } => {
                let inverse = inverse.as_ref();
                let undone = inverse.map_or_else(String::new, |inverse| {
                    format!("; its undo is now: {}", undo(Some(inverse)))
                });
                format!("{} is done{}{undone}", self.effect(*effect), self.also(rests_on))
            }
            Event::NotRun { effect, problem, .. } => {
                format!("{} did not run: {}", self.effect(*effect), what_went_wrong(problem))
            }
            Event::Exposed { effect, to } => {
                format!("{} was seen by an outside party: {}", self.effect(*effect), name(to))
            }
            Event::Closed { effect, by, reason } => format!(
                "the worker of {} is known to be gone, says {}; reason: {reason:?}",
                self.effect(*effect),
                name(by)
            ),
            Event::Evidence { effect, outcome, .. } => {
                let said = if *outcome == Outcome::Done { "it ran" } else { "it did not run" };
                format!("a late or stale report on {} says that {said}", self.effect(*effect))
            }
            Event::WindowPassed { effect } => {
                format!("the time in which {} can be undone is over", self.effect(*effect))
            }
            Event::Delivered { effect, agent, rests_on, .. } => format!(
                "{} was handed out to {} to be run{}",
                self.effect(*effect),
                worker(agent),
                self.also(rests_on)
            ),
            Event::DeliveryHeld { effect, until_ms: Some(_) } => {
                format!("the hold on the run of {} was extended", self.effect(*effect))
            }
            Event::DeliveryHeld { effect, until_ms: None } => {
                format!(
                    "{} was given back without an outcome, or its hold ran out",
                    self.effect(*effect)
                )
            }
            _ => return None,
        })
    }

    fn also(&self, rests_on: &[EffectId]) -> String {
        if rests_on.is_empty() {
            return String::new();
        }
        format!("; it also rests on {}", self.effects(rests_on.iter().copied()))
    }

    fn registered(&self, seq: u64, registered: &Registered) -> String {
        let call = &registered.call;
        let (what, branch) = (self.called(seq), self.branch(registered.branch));
        let later =
            if registered.mode == Mode::Deferred { ", to run after its commit" } else { "" };
        let mut parts = vec![format!("{what} was registered on {branch}{later}")];
        if !registered.rests_on.is_empty() {
            let below = self.effects(registered.rests_on.iter().copied());
            parts.push(format!("rests on {below}"));
        }
        if !call.reads.is_empty() {
            parts.push(format!("reads {}", keys(call.reads.iter().map(|read| &read.key))));
        }
        if !call.writes.is_empty() {
            parts.push(format!("writes {}", keys(&call.writes)));
        }
        let class = format!("{:?}", registered.class).to_lowercase();
        let agent = call.inverse.as_ref().and_then(|inverse| inverse.agent.as_ref());
        let agent = agent.map_or_else(String::new, |agent| format!(", by agent {}", name(agent)));
        parts.push(format!("undo: {}{agent} ({class})", undo(call.inverse.as_ref())));
        parts.join("; ")
    }

    fn of_decisions(&self, seq: u64, event: &Event) -> Option<String> {
        Some(match event {
            Event::Voted { branch, members, by: who } => {
                let voter = match branch {
                    Some(branch) => self.branch(*branch),
                    None => format!(
                        "the merge authority{}",
                        who.as_ref().map_or_else(String::new, |who| format!(" ({})", name(who)))
                    ),
                };
                format!("{voter} voted for {}", self.effects(members.iter()))
            }
            Event::Intended { targets, by: who, .. } => format!(
                "fence {seq} waits to commit {}, asked for{}",
                self.effects(targets.iter()),
                by(who.as_ref().or(Some(&"their owner".to_owned())))
            ),
            Event::Fenced { intent, members, by: who, .. } => {
                let fence = intent.map_or(seq, |intent| intent.0);
                let what = if members.is_empty() {
                    "all that it asked for".to_owned()
                } else {
                    self.effects(members.iter())
                };
                format!(
                    "fence {fence} committed {what}{}",
                    who.as_ref()
                        .map_or_else(String::new, |who| format!(", asked for by {}", name(who)))
                )
            }
            Event::IntentEnded { intent, cause } => {
                let why = cause.map_or_else(String::new, |id| {
                    format!(", because {} is doomed", self.effect(id))
                });
                format!("fence {intent} ended without a commit{why}")
            }
            Event::Doomed(doom) => self.doomed(seq, doom),
            _ => return None,
        })
    }

    fn doomed(&self, seq: u64, doom: &Doom) -> String {
        let (who, named) = (by(doom.by.as_ref()), self.effects(doom.direct.iter()));
        let mut parts = vec![format!("decided against{who}: {named}")];
        let dragged: Vec<EffectId> =
            doom.members.iter().filter(|id| !doom.direct.contains(*id)).collect();
        if !dragged.is_empty() {
            parts.push(format!("dragged along: {}", self.effects(dragged)));
        }
        if !doom.stopped.is_empty() {
            let stopped = doom.stopped.iter().map(|stopped| self.branch(stopped.branch));
            parts.push(format!("stopped: {}", stopped.collect::<Vec<_>>().join(", ")));
        }
        parts.push(match doom.within {
            Some(rollback) => format!("rollback {rollback} undoes them"),
            None if doom.rollback => format!("rollback {seq} undoes them"),
            None => "nothing of it had run".to_owned(),
        });
        parts.join("; ") + &because(Some(&doom.reason))
    }

    fn of_notices(&self, seq: u64, time_ms: u64, event: &Event) -> Option<String> {
        Some(match event {
            Event::Alerted { severity, text, .. } => {
                format!("{} alert {seq}: {text:?}", format!("{severity:?}").to_lowercase())
            }
            Event::AlertAcknowledged { alert, by } => {
                format!("alert {alert} was seen by {}", name(by))
            }
            Event::BreakSignalled(signal) => {
                let again = if signal.recoverable { "can go on later" } else { "cannot go on" };
                let upstream = signal.upstream.iter().map(|agent| name(agent)).collect::<Vec<_>>();
                let upstream = if upstream.is_empty() {
                    String::new()
                } else {
                    format!("; upstream: {}", upstream.join(", "))
                };
                format!(
                    "BREAK of {} by agent {} ({}, it {again}){upstream}; to be acknowledged within {}; reason: {:?}",
                    self.branch(signal.branch),
                    name(&signal.agent),
                    signal.severity.name(),
                    span(time_ms, signal.ack_by_ms),
                    signal.reason
                )
            }
            Event::Notified { signal, agent } => {
                format!("agent {} was told of BREAK {signal} by notice {seq}", name(agent))
            }
            Event::NoticeAcknowledged { notice } => format!("notice {notice} was acknowledged"),
            Event::BreakUnheard { signal } => {
                format!("not everybody acknowledged BREAK {signal} in time")
            }
            Event::BreakConfirmed { signal } => {
                format!("the agent of BREAK {signal} has undone all of its own")
            }
            Event::Refused { verb, code, reference, .. } => {
                let what = self.called(*reference);
                format!("a call of {} on {what} was refused ({})", name(verb), name(code))
            }
            _ => return None,
        })
    }

    fn of_artifacts(&self, seq: u64, event: &Event) -> Option<String> {
        Some(match event {
            Event::ArtifactCreated { compensates_for, by, spec, .. } => {
                let role = compensates_for.map_or_else(String::new, |id| {
                    format!(", the compensation of {}", self.called(id.0))
                });
                format!(
                    "{}{role} was created by {}; type: {}",
                    self.called(seq),
                    name(by),
                    name(&spec.artifact_type)
                )
            }
            Event::ArtifactMoved { artifact, state, by, reason } => format!(
                "{} is {} now, by {}{}",
                self.called(artifact.0),
                state.name(),
                name(by),
                because(reason.as_ref())
            ),
            Event::ArtifactFailed { artifact, by, reason, rollback, .. } => {
                let then = rollback.map_or_else(
                    || "; no compensation runs".to_owned(),
                    |id| format!("; rollback {id} runs its compensation"),
                );
                format!(
                    "{} failed, says {}{then}; reason: {reason:?}",
                    self.called(artifact.0),
                    name(by)
                )
            }
            Event::ArtifactRan { artifact, run, state, attempts, by, .. } => format!(
                "the compensation of {} (run {run}, attempts: {attempts}){}: {}",
                self.called(artifact.0),
                by.as_ref().map_or_else(String::new, |by| format!(", run by {}", worker(by))),
                state.name()
            ),
            _ => return None,
        })
    }
}

fn of_the_store(event: &Event) -> String {
    match event {
        Event::Created { .. } => "the store was made".to_owned(),
        Event::Configured { by, limits, policy } => {
            let what = match (limits, policy) {
                (Some(_), Some(_)) => "limits and policy were",
                (Some(_), None) => "limits were",
                _ => "the policy was",
            };
            format!("{what} replaced by {}", name(by))
        }
        Event::Frozen { by, reason } => {
            format!("new registrations were stopped by {}; reason: {reason:?}", name(by))
        }
        Event::Unfrozen { by } => format!("new registrations were let in again by {}", name(by)),
        Event::Restored { .. } => "the store goes on from a backup".to_owned(),
        Event::Reopened => "the store was opened again after a commit in doubt".to_owned(),
        other => other.kind().replace('_', " "),
    }
}
