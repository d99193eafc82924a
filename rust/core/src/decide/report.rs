//! Reports: what became of each member of a rollback (I18).

use std::collections::{BTreeMap, BTreeSet};

use super::plan::agent_of;
use crate::model::{
    Blocked, ClaimSpec, EffectId, Failure, FailureKind, Limitation, Problem, Report,
};
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
            StepStatus::Completed { .. } => {
                let settled = effect.is_settled();
                if settled { &mut report.completed } else { &mut report.unsettled }.push(*id);
                let text = effect.inverse.as_ref().and_then(|known| known.limitation.clone());
                report.limitations.extend(text.map(|text| Limitation { effect: *id, text }));
            }
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

/// Whether a worker may come to run a step without anybody's stepping in: behind a failed one, only
/// a person or a late confirmation frees it, and neither is waited for.
pub fn is_worth_waiting(state: &State, spec: &ClaimSpec) -> bool {
    let left = state.steps_left(spec);
    let failed = |id: &EffectId| {
        let step = state.effects.get(*id).and_then(|effect| effect.step.as_ref());
        step.is_some_and(|step| step.is_failed())
    };
    let any_failed = state.rollbacks.values().any(|rollback| rollback.members.iter().any(failed));
    if left.is_empty() || !any_failed {
        return !left.is_empty();
    }
    let blocked = blocked(state);
    left.iter().any(|id| blocked.get(id).is_none_or(|causes| !causes.iter().any(failed)))
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
        let last = rollback.finished.iter().flat_map(|last| &last.limitations);
        report.limitations.extend(last.filter(|known| known.effect == id).cloned());
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
type After = BTreeMap<u64, Vec<u64>>;

/// Due steps behind a failed step or a live later writer, directly or through others (C52), with
/// what holds them.
pub(super) fn blocked(state: &State) -> BTreeMap<EffectId, Vec<EffectId>> {
    let (nodes, edges) = state.undo_edges();
    let mut after: After = BTreeMap::new();
    for (first, then, _) in &edges {
        after.entry(*first).or_default().push(*then);
    }
    let mut causes: BTreeMap<u64, Causes> = BTreeMap::new();
    for node in nodes.iter().filter(|node| is_due(state, **node)) {
        if let Guard::Live(writers) = state.guard(EffectId(*node)) {
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

/// Whether a step failed, and if so whether only the order of writers still waits for it.
fn failed_waived(state: &State, node: u64) -> Option<bool> {
    let step = state.effects.get(EffectId(node)).and_then(|effect| effect.step.as_ref())?;
    step.is_failed().then(|| step.is_waived())
}

/// Due steps of earlier writers of the effect's keys: these wait for it even if it is waived.
fn overwritten(state: &State, node: u64) -> BTreeSet<u64> {
    let Some(effect) = state.effects.get(EffectId(node)) else { return BTreeSet::new() };
    if !effect.is_undone_writer() {
        return BTreeSet::new();
    }
    let entries = effect.writes.iter().filter_map(|key| state.keys.get(key));
    let writers = entries.flat_map(|entry| &entry.writers);
    let earlier = writers.filter_map(|writer| state.effects.get(*writer)).filter(|earlier| {
        earlier.position < effect.position && earlier.is_undone_writer() && earlier.is_doomed()
    });
    earlier.map(|earlier| earlier.id.0).filter(|id| is_due(state, *id)).collect()
}

fn add(causes: &mut BTreeMap<u64, Causes>, node: u64, more: impl IntoIterator<Item = EffectId>) {
    let known = causes.entry(node).or_default();
    known.extend(more);
    while known.len() > CAUSES {
        known.pop_last();
    }
}

/// Without rings every edge leads to a lower id, so one pass from the highest on reaches all. What
/// holds a step passes on through it, finished steps included, to all that comes after it.
fn spread_down(state: &State, nodes: &[u64], after: &After, causes: &mut BTreeMap<u64, Causes>) {
    for node in nodes.iter().rev() {
        let mut passed = causes.get(node).cloned().unwrap_or_default();
        match failed_waived(state, *node) {
            Some(true) => {
                for earlier in overwritten(state, *node) {
                    add(causes, earlier, [EffectId(*node)]);
                }
            }
            Some(false) => {
                passed.insert(EffectId(*node));
            }
            None => {}
        }
        if !passed.is_empty() {
            for then in after.get(node).into_iter().flatten() {
                add(causes, *then, passed.iter().copied());
            }
        }
    }
}

/// With rings: each failed or blocked step holds all that comes after it, but no member of its own
/// ring above it, since of a ring the higher id goes first.
fn spread_over_rings(
    state: &State,
    nodes: &[u64],
    after: &After,
    causes: &mut BTreeMap<u64, Causes>,
) {
    let mut before: After = BTreeMap::new();
    for (first, thens) in after {
        for then in thens {
            before.entry(*then).or_default().push(*first);
        }
    }
    let mut todo: Vec<u64> = nodes
        .iter()
        .copied()
        .filter(|node| causes.contains_key(node) || failed_waived(state, *node).is_some())
        .collect();
    while let Some(source) = todo.pop() {
        let failed = failed_waived(state, source);
        let held: BTreeSet<u64> = if failed == Some(true) {
            overwritten(state, source)
        } else {
            let leading = reach(&before, source);
            let in_ring = |node: u64| source < node && leading.contains(&node);
            let held = reach(after, source).into_iter();
            held.filter(|node| *node != source && is_due(state, *node) && !in_ring(*node)).collect()
        };
        let by = match failed {
            Some(_) => Causes::from([EffectId(source)]),
            None => causes.get(&source).cloned().unwrap_or_default(),
        };
        for node in held {
            if !causes.contains_key(&node) {
                todo.push(node);
            }
            add(causes, node, by.iter().copied());
        }
    }
}

fn reach(after: &After, source: u64) -> BTreeSet<u64> {
    let mut reached = BTreeSet::new();
    let mut todo = vec![source];
    while let Some(node) = todo.pop() {
        let next = after.get(&node).into_iter().flatten();
        todo.extend(next.copied().filter(|then| reached.insert(*then)));
    }
    reached
}
