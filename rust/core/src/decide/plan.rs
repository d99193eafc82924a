//! Plans of rollbacks: derived from the set and the records, never stored. Only the digest is.

use std::collections::BTreeSet;

use super::report::report_of;
use crate::model::{ApprovalState, EffectId, Inverse, Plan, PlannedStep, RollbackState, Subject};
use crate::state::{Effect, Rollback, State};

/// The plan of a rollback: its digest, and the steps that are left in the order in which one worker
/// would take them.
pub fn plan_of(state: &State, rollback: &Rollback) -> Plan {
    let own: BTreeSet<EffectId> = rollback.members.iter().copied().collect();
    let steps = state
        .undo_sequence()
        .into_iter()
        .filter(|id| own.contains(id))
        .filter_map(|id| state.effects.get(id))
        .map(|effect| planned(state, effect))
        .collect();
    Plan { digest: digest_of(state, rollback), steps }
}

fn planned(state: &State, effect: &Effect) -> PlannedStep {
    let place = effect.step.as_ref().map_or(0, |step| step.place);
    let call = effect.inverse.as_ref().and_then(|inverse| inverse.calls.get(place));
    PlannedStep {
        effect: effect.id,
        tool: call.map_or_else(String::new, |call| call.tool.clone()),
        agent: agent_of(state, effect),
        class: effect.class,
        deadline_ms: effect.deadline_ms,
    }
}

/// The agent of the effect's branch; empty where memory has let the branch go.
pub(super) fn agent_of(state: &State, effect: &Effect) -> String {
    state.branches.get(&effect.branch).map_or_else(String::new, |branch| branch.agent.clone())
}

/// Digest of the exact plan: effects, tools and argument hashes of all steps that may have to run,
/// ascending by effect. What is already undone stays in it, so that progress changes no plan.
pub(super) fn digest_of(state: &State, rollback: &Rollback) -> [u8; 32] {
    let mut digest = Digest::of("effectstore plan");
    for effect in rollback.members.iter().filter_map(|id| state.effects.get(*id)) {
        if effect.step.as_ref().is_some_and(|step| !step.is_discarded()) {
            digest.step(effect.id, effect.inverse.as_deref());
        }
    }
    digest.finish()
}

/// Digest of what an approval of a single call covers.
pub(super) fn digest_of_call(state: &State, subject: &Subject) -> [u8; 32] {
    let mut digest = Digest::of("effectstore call");
    match subject {
        Subject::Rollback(rollback) => digest.number(rollback.0),
        Subject::Effect(id) => {
            digest.number(id.0);
            if let Some(effect) = state.effects.get(*id) {
                digest.text(&effect.tool);
            }
        }
        Subject::Early { branch, tool, args, idempotency_key } => {
            digest.number(branch.0);
            digest.text(tool);
            digest.bytes(&args.hash);
            digest.bytes(idempotency_key.as_deref().unwrap_or_default());
        }
    }
    digest.finish()
}

/// A digest over many short parts. The hash is several times as fast on long pieces as on short ones.
pub(super) struct Digest {
    hasher: blake3::Hasher,
    waiting: Vec<u8>,
}

impl Digest {
    const PIECE: usize = 16 << 10;

    pub(super) fn of(what: &str) -> Self {
        Digest { hasher: blake3::Hasher::new(), waiting: what.as_bytes().to_vec() }
    }

    /// A step: its effect and its inverse.
    pub(super) fn step(&mut self, id: EffectId, inverse: Option<&Inverse>) {
        self.number(id.0);
        let Some(inverse) = inverse else {
            self.bytes(&[0]);
            return;
        };
        self.bytes(&[1]);
        self.text(inverse.manual.as_deref().unwrap_or_default());
        self.number(inverse.calls.len() as u64);
        for call in &inverse.calls {
            self.text(&call.tool);
            self.bytes(&call.args.map_or([0; 32], |args| args.hash));
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if self.waiting.len() + bytes.len() > Self::PIECE {
            self.hasher.update(&self.waiting);
            self.waiting.clear();
        }
        self.waiting.extend_from_slice(bytes);
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }

    pub(super) fn finish(mut self) -> [u8; 32] {
        self.hasher.update(&self.waiting);
        *self.hasher.finalize().as_bytes()
    }
}

/// How far a rollback is.
pub fn rollback_state(state: &State, rollback: &Rollback) -> RollbackState {
    if !rollback.open {
        return RollbackState::InReview;
    }
    let asked = rollback
        .approvals
        .last()
        .and_then(|id| state.approvals.get(id))
        .is_some_and(|approval| approval.info.state == ApprovalState::Pending);
    // Before a claim that is still held: whoever looks for what waits for a person must find it.
    if asked && !rollback.approved {
        return RollbackState::AwaitingApproval;
    }
    let mut steps = rollback.members.iter().filter_map(|id| state.effects.get(*id)?.step.as_ref());
    if steps.any(|step| step.is_claimed()) {
        return RollbackState::Running;
    }
    if report_of(state, rollback).pending.is_empty() {
        RollbackState::Blocked
    } else {
        RollbackState::Due
    }
}
