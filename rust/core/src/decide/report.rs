//! Reports: what became of each member of a rollback (I18).

use std::collections::{BTreeMap, BTreeSet};

use super::plan::agent_of;
use crate::graph::Relation;
use crate::model::{Blocked, EffectId, Failure, FailureKind, Problem, Report};
use crate::state::{Effect, Guard, Rollback, State, StepStatus};

/// How many causes a blocked step names at most.
const CAUSES: usize = 16;

/// What became of the members of a rollback by now; each is in exactly one list. Members that
/// memory has let go are where the last report has them.
pub fn report_of(state: &State, rollback: &Rollback) -> Report {
    let mut report = Report::default();
    let mut due = Vec::new();
    for id in &rollback.members {
        let Some(effect) = state.effects.get(*id) else {
            recall(&mut report, rollback, *id);
            continue;
        };
        let Some(step) = effect.step.as_ref() else { continue };
        match &step.status {
            StepStatus::Discarded => report.discarded.push(*id),
            StepStatus::Completed { .. } if effect.is_settled() => report.completed.push(*id),
            StepStatus::Completed { .. } => report.unsettled.push(*id),
            StepStatus::Failed { kind, problem, writer, .. } => {
                report.failed.push(failure(state, effect, *kind, problem, *writer));
            }
            StepStatus::Claimed { .. } => report.pending.push(*id),
            StepStatus::Pending { .. } => due.push(*id),
        }
    }
    if !due.is_empty() {
        let blocked = blocked(state);
        for id in due {
            match blocked.get(&id) {
                Some(by) => report.blocked.push(Blocked { effect: id, by: by.clone() }),
                None => report.pending.push(id),
            }
        }
        report.pending.sort_unstable();
    }
    report.downstream_confirmed =
        report.failed.is_empty() && report.blocked.is_empty() && report.pending.is_empty();
    report
}

/// Whether nothing of the rollback is left to do or to know.
pub(super) fn is_clean(state: &State, rollback: &Rollback) -> bool {
    // The lowest member is mostly undone last, so this mostly ends at the first look.
    rollback.members.iter().filter_map(|id| state.effects.get(*id)).all(|effect| {
        effect
            .step
            .as_ref()
            .is_none_or(|step| step.is_discarded() || (step.is_completed() && effect.is_settled()))
    })
}

fn recall(report: &mut Report, rollback: &Rollback, id: EffectId) {
    let discarded =
        rollback.finished.as_ref().is_some_and(|last| last.discarded.binary_search(&id).is_ok());
    if discarded {
        report.discarded.push(id);
    } else {
        report.completed.push(id);
    }
}

fn failure(
    state: &State,
    effect: &Effect,
    kind: FailureKind,
    problem: &Problem,
    writer: Option<EffectId>,
) -> Failure {
    let (place, attempts) = effect.step.as_ref().map_or((0, 0), |step| (step.place, step.attempts));
    let call = effect.inverse.as_ref().and_then(|inverse| inverse.calls.get(place));
    Failure {
        effect: effect.id,
        tool: call.map_or_else(|| effect.tool.to_string(), |call| call.tool.clone()),
        agent: agent_of(state, effect),
        kind,
        problem: problem.clone(),
        attempts,
        writer,
    }
}

type Causes = BTreeSet<EffectId>;

/// Due steps behind a failed step or a live later writer, directly or through others (C52), with
/// what holds them.
pub(super) fn blocked(state: &State) -> BTreeMap<EffectId, Vec<EffectId>> {
    let (nodes, edges) = state.undo_edges();
    let mut after: BTreeMap<u64, Vec<(u64, Relation)>> = BTreeMap::new();
    for (first, then, relation) in &edges {
        after.entry(*first).or_default().push((*then, *relation));
    }
    let mut causes: BTreeMap<u64, Causes> = BTreeMap::new();
    for node in &nodes {
        if is_due(state, *node)
            && let Guard::Live(writers) = state.guard(EffectId(*node))
        {
            causes.entry(*node).or_default().extend(writers.into_iter().take(CAUSES));
        }
    }
    if edges.iter().all(|(first, then, _)| first > then) {
        spread_down(state, &nodes, &after, &mut causes);
    } else {
        spread_over_rings(state, &nodes, &after, &mut causes);
    }
    causes
        .into_iter()
        .filter(|(node, _)| is_due(state, *node))
        .map(|(node, by)| (EffectId(node), by.into_iter().collect()))
        .collect()
}

fn is_due(state: &State, node: u64) -> bool {
    let step = state.effects.get(EffectId(node)).and_then(|effect| effect.step.as_ref());
    step.is_some_and(|step| step.is_pending())
}

/// Whether a failed step holds back what comes after it along such an edge.
fn holds(state: &State, node: u64, relation: Relation) -> bool {
    let step = state.effects.get(EffectId(node)).and_then(|effect| effect.step.as_ref());
    step.is_some_and(|step| {
        step.is_failed() && (!step.is_waived() || relation == Relation::KeyOrder)
    })
}

/// Without rings every edge leads to a lower id, so one pass from the highest on reaches all.
fn spread_down(
    state: &State,
    nodes: &[u64],
    after: &BTreeMap<u64, Vec<(u64, Relation)>>,
    causes: &mut BTreeMap<u64, Causes>,
) {
    for node in nodes.iter().rev() {
        let inherited = causes.get(node).cloned();
        for (then, relation) in after.get(node).into_iter().flatten() {
            let mut more = inherited.clone().unwrap_or_default();
            if holds(state, *node, *relation) {
                more.insert(EffectId(*node));
            }
            if more.is_empty() {
                continue;
            }
            let known = causes.entry(*then).or_default();
            known.extend(more);
            while known.len() > CAUSES {
                known.pop_last();
            }
        }
    }
}

/// With rings: each source reaches what comes after it, but no member of its own ring above it,
/// since of a ring the higher id goes first.
fn spread_over_rings(
    state: &State,
    nodes: &[u64],
    after: &BTreeMap<u64, Vec<(u64, Relation)>>,
    causes: &mut BTreeMap<u64, Causes>,
) {
    let behind_live: BTreeMap<u64, Causes> = causes.clone();
    for source in nodes {
        let own = behind_live.get(source);
        let failed = holds(state, *source, Relation::KeyOrder);
        if own.is_none() && !failed {
            continue;
        }
        let from_here = |relation: Relation| own.is_some() || holds(state, *source, relation);
        for reached in reach(after, *source, from_here) {
            let ring = reach(after, reached, |_| true).contains(source);
            if reached == *source || (ring && *source < reached) {
                continue;
            }
            let known = causes.entry(reached).or_default();
            match own {
                Some(writers) => known.extend(writers),
                None => {
                    known.insert(EffectId(*source));
                }
            }
            while known.len() > CAUSES {
                known.pop_last();
            }
        }
    }
}

fn reach(
    after: &BTreeMap<u64, Vec<(u64, Relation)>>,
    source: u64,
    first: impl Fn(Relation) -> bool,
) -> BTreeSet<u64> {
    let mut reached = BTreeSet::new();
    let start = after.get(&source).into_iter().flatten();
    let mut todo: Vec<u64> =
        start.filter(|(_, relation)| first(*relation)).map(|(then, _)| *then).collect();
    while let Some(node) = todo.pop() {
        if reached.insert(node) {
            todo.extend(after.get(&node).into_iter().flatten().map(|(then, _)| *then));
        }
    }
    reached
}
