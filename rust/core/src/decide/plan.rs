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
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"effectstore plan");
    for effect in rollback.members.iter().filter_map(|id| state.effects.get(*id)) {
        if effect.step.as_ref().is_some_and(|step| !step.is_discarded()) {
            digest_step(&mut hasher, effect.id, effect.inverse.as_deref());
        }
    }
    *hasher.finalize().as_bytes()
}

pub(super) fn digest_step(hasher: &mut blake3::Hasher, id: EffectId, inverse: Option<&Inverse>) {
    hasher.update(&id.0.to_be_bytes());
    let Some(inverse) = inverse else {
        hasher.update(&[0]);
        return;
    };
    hasher.update(&[1]);
    text(hasher, inverse.manual.as_deref().unwrap_or_default());
    hasher.update(&(inverse.calls.len() as u64).to_be_bytes());
    for call in &inverse.calls {
        text(hasher, &call.tool);
        hasher.update(&call.args.map_or([0; 32], |args| args.hash));
    }
}

/// Digest of what an approval of a single call covers.
pub(super) fn digest_of_call(state: &State, subject: &Subject) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"effectstore call");
    match subject {
        Subject::Rollback(rollback) => {
            hasher.update(&rollback.0.to_be_bytes());
        }
        Subject::Effect(id) => {
            hasher.update(&id.0.to_be_bytes());
            if let Some(effect) = state.effects.get(*id) {
                text(&mut hasher, &effect.tool);
            }
        }
        Subject::Early { branch, tool, args, idempotency_key } => {
            hasher.update(&branch.0.to_be_bytes());
            text(&mut hasher, tool);
            hasher.update(&args.hash);
            hasher.update(idempotency_key.as_deref().unwrap_or_default());
        }
    }
    *hasher.finalize().as_bytes()
}

fn text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_be_bytes());
    hasher.update(text.as_bytes());
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
