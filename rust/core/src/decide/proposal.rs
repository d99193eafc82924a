//! Plans and impact: what a rollback would do, told before anybody approves it.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Digest, agent_of};
use super::story::{Story, stories_of};
use super::{History, HistoryError};
use crate::graph::{Relation, UndoOrder};
use crate::model::{Class, EffectId, Event, Impact, Inverse, Key, Plan, PlannedStep, Requested};
use crate::state::{ApprovalNeed, Asked, Rollback, State, Weight};

/// A member as plans need it, in memory or read from the log.
struct Member {
    id: EffectId,
    class: Class,
    inverse: Option<Inverse>,
    writes: Vec<Key>,
    agent: String,
    deadline_ms: Option<u64>,
    /// Its place in the order of writes; none where it never ran.
    position: Option<u64>,
    rests_on: Vec<EffectId>,
}

fn members_of(
    state: &State,
    history: Option<&dyn History>,
    ids: &[EffectId],
    stories: &BTreeMap<EffectId, Story>,
) -> Result<Vec<Member>, HistoryError> {
    let mut members = Vec::new();
    for id in ids {
        if let Some(effect) = state.effects.get(*id) {
            let agent = named(history, agent_of(state, effect), effect.branch.0)?;
            let runs = match &effect.step {
                Some(step) => !step.is_discarded(),
                None => effect.is_writer(),
            };
            members.push(Member {
                id: *id,
                class: effect.class,
                inverse: effect.inverse.as_deref().cloned(),
                writes: effect.writes.to_vec(),
                agent,
                deadline_ms: effect.deadline_ms,
                position: runs.then_some(effect.position),
                rests_on: crate::state::ids(state.graph.dependencies(id.0)),
            });
        } else if let Some(story) = stories.get(id) {
            let registered = &story.registered;
            let known = state.branches.get(&registered.branch).map(|known| known.agent.clone());
            members.push(Member {
                id: *id,
                class: story.class(),
                inverse: story.inverse().cloned(),
                writes: registered.call.writes.clone(),
                agent: named(history, known.unwrap_or_default(), registered.branch.0)?,
                deadline_ms: registered.deadline_ms,
                position: story.may_have_run().then(|| story.position()),
                rests_on: registered.rests_on.clone(),
            });
        }
    }
    Ok(members)
}

/// The agent of a branch, which memory may have let go.
fn named(
    history: Option<&dyn History>,
    known: String,
    branch: u64,
) -> Result<String, HistoryError> {
    match history {
        Some(history) if known.is_empty() => Ok(match history.event(branch)? {
            Some(Event::BranchCreated { agent, .. }) => agent,
            _ => known,
        }),
        _ => Ok(known),
    }
}

/// The approval that a request's plan needs. The matrix is asked for the written reason; a person is
/// asked in any case.
pub(super) fn need_of_request(
    state: &State,
    request: &Requested,
    stories: &BTreeMap<EffectId, Story>,
) -> Result<ApprovalNeed, HistoryError> {
    let members = members_of(state, None, &request.members(), stories)?;
    let mut weight = Weight::new(&state.policy);
    for member in members.iter().filter(|member| member.position.is_some()) {
        weight.add(member.class, member.inverse.is_some(), &member.writes);
    }
    let reason_required = weight.needed(&state.policy).unwrap_or(false);
    Ok(ApprovalNeed { digest: digest(&members), reason_required })
}

fn digest(members: &[Member]) -> [u8; 32] {
    let mut digest = Digest::of("effectstore plan");
    for member in members.iter().filter(|member| member.position.is_some()) {
        digest.step(member.id, member.inverse.as_ref());
    }
    digest.finish()
}

fn committed_stories(
    state: &State,
    history: &dyn History,
    request: &Requested,
) -> Result<BTreeMap<EffectId, Story>, HistoryError> {
    let gone = request.committed.iter().filter(|id| !state.effects.contains(*id));
    stories_of(history, gone.collect())
}

/// The plan of a governed rollback that nobody has approved yet: its steps in the order in which one
/// worker would take them, if no other rollback were there.
///
/// # Errors
/// Where the log cannot be read.
pub fn plan_of_request(
    state: &State,
    history: &dyn History,
    asked: &Asked,
) -> Result<Plan, HistoryError> {
    let stories = committed_stories(state, history, &asked.request)?;
    let members = members_of(state, Some(history), &asked.request.members(), &stories)?;
    let steps: BTreeMap<u64, &Member> = members
        .iter()
        .filter(|member| member.position.is_some())
        .map(|member| (member.id.0, member))
        .collect();
    let nodes: Vec<u64> = steps.keys().copied().collect();
    let mut edges = Vec::new();
    let mut writers: BTreeMap<&Key, Vec<(u64, u64)>> = BTreeMap::new();
    for member in steps.values() {
        let on = member.rests_on.iter().filter(|on| steps.contains_key(&on.0));
        edges.extend(on.map(|on| (member.id.0, on.0, Relation::Dependency)));
        for key in &member.writes {
            writers.entry(key).or_default().push((member.position.unwrap_or(0), member.id.0));
        }
    }
    for chain in writers.values_mut() {
        chain.sort_unstable();
        edges.extend(chain.windows(2).map(|pair| (pair[1].1, pair[0].1, Relation::KeyOrder)));
    }
    let mut order = UndoOrder::new(&nodes, &edges);
    let mut planned = Vec::new();
    loop {
        let next = order.ready().next();
        let Some(next) = next else { break };
        order.finish(next);
        planned.extend(steps.get(&next).map(|member| step(member)));
    }
    Ok(Plan { digest: digest(&members), steps: planned })
}

fn step(member: &Member) -> PlannedStep {
    let call = member.inverse.as_ref().and_then(|inverse| inverse.calls.first());
    PlannedStep {
        effect: member.id,
        tool: call.map_or_else(String::new, |call| call.tool.clone()),
        agent: member.agent.clone(),
        class: member.class,
        deadline_ms: member.deadline_ms,
    }
}

/// What a governed rollback that nobody has approved yet would touch.
///
/// # Errors
/// Where the log cannot be read.
pub fn impact_of_request(
    state: &State,
    history: &dyn History,
    asked: &Asked,
) -> Result<Impact, HistoryError> {
    let stories = committed_stories(state, history, &asked.request)?;
    let members = members_of(state, Some(history), &asked.request.members(), &stories)?;
    Ok(impact(&members, asked.request.targets.iter().collect()))
}

/// What a rollback touches. Members that memory has let go are read from the log.
///
/// # Errors
/// Where the log cannot be read.
pub fn impact_of(
    state: &State,
    history: &dyn History,
    members: &[EffectId],
    direct: &[EffectId],
) -> Result<Impact, HistoryError> {
    let gone = members.iter().copied().filter(|id| !state.effects.contains(*id)).collect();
    let stories = stories_of(history, gone)?;
    let members = members_of(state, Some(history), members, &stories)?;
    Ok(impact(&members, direct.to_vec()))
}

/// The same of a rollback in memory.
///
/// # Errors
/// Where the log cannot be read.
pub fn impact_of_rollback(
    state: &State,
    history: &dyn History,
    rollback: &Rollback,
) -> Result<Impact, HistoryError> {
    impact_of(state, history, &rollback.members, &rollback.direct)
}

fn impact(members: &[Member], done: Vec<EffectId>) -> Impact {
    let runs = || members.iter().filter(|member| member.position.is_some());
    let keys: BTreeSet<&Key> = runs().flat_map(|member| &member.writes).collect();
    let agents: BTreeSet<&String> = members.iter().map(|member| &member.agent).collect();
    let mut expiring: Vec<(u64, EffectId)> =
        runs().filter_map(|member| Some((member.deadline_ms?, member.id))).collect();
    expiring.sort_unstable();
    let bare = runs().filter(|member| member.inverse.is_none());
    let rests_on = members.iter().map(|member| member.id).filter(|id| !done.contains(id)).collect();
    Impact {
        effects: members.iter().map(|member| member.id).collect(),
        done,
        rests_on,
        keys: keys.into_iter().cloned().collect(),
        agents: agents.into_iter().cloned().collect(),
        class: runs().map(|member| member.class).max().unwrap_or(Class::Full),
        not_compensable: bare.map(|member| member.id).collect(),
        limitations: runs()
            .filter_map(|member| Some((member.id, member.inverse.as_ref()?.limitation.clone()?)))
            .collect(),
        expiring: expiring.into_iter().map(|(_, id)| id).collect(),
    }
}
