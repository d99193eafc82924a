//! BREAKs in memory: who has still to take note, and the order that they add to the inverses.
//!
//! A BREAK stays as long as a notice of it is unacknowledged or its order is in force. Its order is
//! in force until the agent that broke has undone all that was doomed by the time of the signal.

use std::collections::{BTreeMap, BTreeSet};

use super::undo::Edges;
use super::{Effect, State, Timer};
use crate::graph::Relation;
use crate::model::{BreakId, EffectId, Event, NoticeId, Signal};

/// A BREAK in memory.
#[derive(Clone, Debug)]
pub struct Break {
    /// As it was signalled.
    pub signal: Signal,
    /// Notices of it that nobody has acknowledged.
    pub waiting: BTreeSet<NoticeId>,
    /// The time to acknowledge is over, and that was escalated.
    pub unheard: bool,
    /// The agent that broke has confirmed; nobody waits for it any more.
    pub confirmed: bool,
    /// An unfinished step of the agent that broke, as last seen. A hint that counts in no comparison.
    pub left: Option<EffectId>,
    /// Records that memory needs for it, ascending.
    pub records: Vec<u64>,
}

/// All BREAKs in memory, and the notices that are unacknowledged.
#[derive(Clone, Debug, Default)]
pub struct Breaks {
    /// By id.
    pub known: BTreeMap<BreakId, Break>,
    /// Unacknowledged notices: of which BREAK, and to whom.
    pub notices: BTreeMap<NoticeId, (BreakId, String)>,
}

impl Breaks {
    /// BREAKs whose order is in force, oldest first.
    pub fn ordering(&self) -> impl Iterator<Item = (BreakId, &Break)> {
        let in_force = |known: &&Break| !known.confirmed;
        self.known.iter().map(|(id, known)| (*id, known)).filter(move |(_, known)| in_force(known))
    }

    /// Records that memory needs.
    pub(super) fn needed(&self, needed: &mut BTreeSet<u64>) {
        for known in self.known.values() {
            needed.extend(known.records.iter().copied());
        }
    }

    /// All that counts in a comparison, as text.
    pub(super) fn text(&self) -> String {
        let known = self.known.iter().map(|(id, known)| {
            let Break { signal, waiting, unheard, confirmed, .. } = known;
            format!("{id} {signal:?} {waiting:?} unheard {unheard} confirmed {confirmed}")
        });
        format!("{:?} {:?}", known.collect::<Vec<_>>(), self.notices)
    }

    fn note(&mut self, id: BreakId, seq: u64) -> Option<&mut Break> {
        let known = self.known.get_mut(&id)?;
        if known.records.last() != Some(&seq) {
            known.records.push(seq);
        }
        Some(known)
    }
}

impl State {
    pub(super) fn fold_break(&mut self, seq: u64, event: &Event) {
        match event {
            Event::BreakSignalled(signal) => {
                let id = BreakId(seq);
                self.timers.insert((signal.ack_by_ms, Timer::Acks(id)));
                let known = Break {
                    signal: (**signal).clone(),
                    waiting: BTreeSet::new(),
                    unheard: false,
                    confirmed: signal.upstream.is_empty(),
                    left: None,
                    records: vec![seq],
                };
                if !known.confirmed {
                    self.order = None;
                }
                self.breaks.known.insert(id, known);
            }
            Event::Notified { signal, agent } => {
                let notice = NoticeId(seq);
                if let Some(known) = self.breaks.note(*signal, seq) {
                    known.waiting.insert(notice);
                    self.breaks.notices.insert(notice, (*signal, agent.clone()));
                }
            }
            Event::NoticeAcknowledged { notice } => {
                let Some((id, _)) = self.breaks.notices.remove(notice) else { return };
                if let Some(known) = self.breaks.note(id, seq) {
                    known.waiting.remove(notice);
                }
                self.let_break_go(id);
            }
            Event::BreakUnheard { signal } => {
                if let Some(known) = self.breaks.note(*signal, seq) {
                    known.unheard = true;
                    self.timers.remove(&(known.signal.ack_by_ms, Timer::Acks(*signal)));
                }
            }
            Event::BreakConfirmed { signal } => {
                if let Some(known) = self.breaks.note(*signal, seq) {
                    known.confirmed = true;
                    self.order = None;
                }
                self.let_break_go(*signal);
            }
            _ => {}
        }
    }

    fn let_break_go(&mut self, id: BreakId) {
        let Some(known) = self.breaks.known.get(&id).filter(|known| known.waiting.is_empty())
        else {
            return;
        };
        self.timers.remove(&(known.signal.ack_by_ms, Timer::Acks(id)));
        if known.confirmed {
            self.breaks.known.remove(&id);
        }
    }

    /// The agent that owns an effect; empty where memory has let its branch go.
    pub fn owner(&self, effect: &Effect) -> &str {
        self.branches.get(&effect.branch).map_or("", |branch| branch.agent.as_str())
    }

    /// A step by which the agent that broke has still to confirm: one that is not finished, of a
    /// rollback that was there when the BREAK was signalled.
    pub fn left_to_confirm(&self, id: BreakId, signal: &Signal) -> Option<EffectId> {
        let earlier = self.rollbacks.values().take_while(|rollback| rollback.id.0 < id.0);
        let members = earlier.filter(|known| known.open).flat_map(|known| &known.members);
        members.copied().find(|member| self.is_left_of(*member, &signal.agent))
    }

    /// Whether it is an effect of this agent whose step is not finished.
    pub fn is_left_of(&self, id: EffectId, agent: &str) -> bool {
        let Some(effect) = self.effects.get(id) else { return false };
        let step = effect.step.as_ref().filter(|step| !step.is_finished());
        step.is_some() && self.owner(effect) == agent
    }

    /// Adds the order of BREAKs to that of the records. Of each BREAK in force one more node stands
    /// between the steps of the agent that broke and those of the agents upstream. Recorded order
    /// stands above it: a step that one of the agent that broke has to wait for does not wait for
    /// that agent, and neither does an earlier BREAK's order give way to a later one's. So no BREAK
    /// makes a ring.
    pub(super) fn add_break_order(&self, nodes: &mut Vec<u64>, edges: &mut Edges) {
        let effects = nodes.len();
        for (id, known) in self.breaks.ordering() {
            let (mut broke, mut upstream) = (Vec::new(), Vec::new());
            for node in &nodes[..effects] {
                let Some(effect) = self.effects.get(EffectId(*node)) else { continue };
                let owner = self.owner(effect);
                let by_then = effect.rollback.is_some_and(|rollback| rollback.0 < id.0);
                if owner == known.signal.agent && by_then {
                    broke.push(*node);
                } else if known.signal.upstream.iter().any(|agent| agent == owner) {
                    upstream.push(*node);
                }
            }
            let before = before(&broke, edges);
            edges.extend(broke.into_iter().map(|node| (node, id.0, Relation::Dependency)));
            let held = upstream.into_iter().filter(|node| !before.contains(node));
            edges.extend(held.map(|node| (id.0, node, Relation::Dependency)));
            nodes.push(id.0);
        }
        nodes.sort_unstable();
    }
}

/// All that has to be finished before one of these, directly or through others.
pub(super) fn before(ends: &[u64], edges: &Edges) -> BTreeSet<u64> {
    let mut backwards: Vec<(u64, u64)> =
        edges.iter().map(|(first, then, _)| (*then, *first)).collect();
    backwards.sort_unstable();
    let mut found = BTreeSet::new();
    let mut todo = ends.to_vec();
    while let Some(node) = todo.pop() {
        let from = backwards.partition_point(|(then, _)| *then < node);
        let firsts = backwards[from..].iter().take_while(|(then, _)| *then == node);
        todo.extend(firsts.map(|(_, first)| *first).filter(|first| found.insert(*first)));
    }
    found
}
