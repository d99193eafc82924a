//! What a fence would decide, without deciding it (section 5).

use std::collections::BTreeSet;

use super::history::Ended;
use super::vote::Votes;
use crate::graph::Scratch;
use crate::model::{
    BlockReason, Blocker, BranchId, BranchState, Decision, DecisionKind, EffectId, EffectState,
    Target,
};
use crate::state::{State, ids, raw};

/// What the fence of a target in memory would decide (C34, C35, C36). An effect that memory does not
/// hold is settled; whoever asks looks it up in the log.
pub fn decision(state: &State, target: Target) -> Decision {
    match target {
        Target::Effect(id) => of_effect(state, id),
        Target::Branch(id) => of_branch(state, id),
    }
}

/// What the fence of a closed branch that memory does not hold would decide (C36).
pub fn of_ended(id: BranchId, ended: &Ended) -> Decision {
    let kind = if ended.merged { DecisionKind::Commit } else { DecisionKind::Abort };
    settled(id.0, kind, ended.cause)
}

fn settled(target: u64, kind: DecisionKind, cause: Option<EffectId>) -> Decision {
    Decision { target, kind, closure: Vec::new(), blockers: Vec::new(), cause, expired: Vec::new() }
}

fn of_effect(state: &State, id: EffectId) -> Decision {
    let Some(effect) = state.effects.get(id) else {
        return settled(id.0, DecisionKind::Commit, None);
    };
    match effect.shown_state() {
        EffectState::Committed => settled(id.0, DecisionKind::Commit, None),
        EffectState::Doomed => settled(id.0, DecisionKind::Abort, Some(id)),
        EffectState::Void => settled(id.0, DecisionKind::Abort, None),
        EffectState::Live => {
            let owner = effect.branch;
            let all = closure(state, &[id]);
            let blockers = blockers(state, &all, Votes::WithOwner(owner));
            let rest = all.iter().copied().filter(|member| *member != id).collect();
            judge(state, id.0, &all, rest, blockers)
        }
    }
}

fn of_branch(state: &State, id: BranchId) -> Decision {
    let Some(branch) = state.branches.get(&id) else {
        return settled(id.0, DecisionKind::Commit, None);
    };
    if branch.state == BranchState::Doomed
        || (branch.state == BranchState::Closed && !branch.merged)
    {
        return settled(id.0, DecisionKind::Abort, branch.cause);
    }
    let own = state.live_of(id);
    let all = closure(state, &own);
    let blockers = blockers(state, &all, Votes::WithOwner(id));
    let last = last_of(state, &own);
    let below = all.iter().copied().filter(|member| !last.contains(member)).collect();
    judge(state, id.0, &all, below, blockers)
}

/// Those of a branch's own effects that no other of them rests on.
fn last_of(state: &State, own: &[EffectId]) -> BTreeSet<EffectId> {
    let mut scratch = Scratch::new();
    let open = ids(state.graph.uncovered(&mut scratch, &raw(own)));
    // The newest member of a ring is uncovered only by the tip's rule: others rest on it all the same.
    open.into_iter()
        .filter(|last| {
            let above = state.graph.cascade(&mut scratch, &[last.0]);
            !above
                .iter()
                .any(|other| *other != last.0 && own.binary_search(&EffectId(*other)).is_ok())
        })
        .collect()
}

fn judge(
    state: &State,
    target: u64,
    all: &[EffectId],
    closure: Vec<EffectId>,
    blockers: Vec<Blocker>,
) -> Decision {
    let kind = if closure.is_empty() && blockers.is_empty() {
        DecisionKind::Commit
    } else {
        DecisionKind::Escalate
    };
    let expired = all
        .iter()
        .copied()
        .filter(|id| {
            state.effects.get(*id).is_some_and(|effect| {
                effect.deadline_ms.is_some_and(|deadline| {
                    !state.timers.contains(&(deadline, crate::state::Timer::Window(*id)))
                })
            })
        })
        .collect();
    Decision { target, kind, closure, blockers, cause: None, expired }
}

fn closure(state: &State, targets: &[EffectId]) -> Vec<EffectId> {
    ids(state.graph.closure(&mut Scratch::new(), &raw(targets)))
}

/// The members of a closure that keep it from being committed (I11).
pub(super) fn blockers(state: &State, closure: &[EffectId], votes: Votes<'_>) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    let mut briefs = state.effects.briefs();
    for id in closure.iter().copied() {
        let Some((brief, owner)) = briefs.get(id).filter(|(brief, _)| brief.is_live()) else {
            continue;
        };
        let block = |reason| {
            let branch = state.branches.get(&owner);
            Blocker {
                effect: id,
                branch: branch.map_or_else(String::new, |branch| branch.name.clone()),
                agent: branch.map_or_else(String::new, |branch| branch.agent.clone()),
                reason,
            }
        };
        if !votes.cover(state, id, brief, owner) {
            blockers.push(block(BlockReason::NoVote));
        }
        if !brief.is_ready() {
            blockers.push(block(BlockReason::Unknown));
        }
    }
    blockers
}

/// What keeps a waiting commit of these targets from going through.
pub fn blockers_of(state: &State, targets: &[EffectId]) -> Vec<Blocker> {
    blockers(state, &closure(state, targets), Votes::Cast)
}
