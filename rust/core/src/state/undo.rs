//! Which inverses may start: the order over all unfinished rollbacks, and the guard of later work.

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, Effects, State};
use crate::graph::{Relation, UndoOrder};
use crate::model::{EffectId, EffectState, Key};

/// What later writers of an effect's keys mean for its inverse (I17).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nothing newer is there.
    Free,
    /// Live later writers: it waits for their decision.
    Live(Vec<EffectId>),
    /// A later writer of this key is committed: undoing would clobber it.
    Conflict(EffectId, Key),
}

/// Edges `(first, then)`: the inverse of the first must be finished before that of the other.
pub type Edges = Vec<(u64, u64, Relation)>;

/// The order of inverses, and how far it has come.
///
/// A finished step counts as finished only once everything before it is, and a waived one is waived
/// only then. So the order stays transitive through steps that there is nothing to do for.
#[derive(Clone, Debug)]
pub struct Undo {
    order: UndoOrder,
    /// Finished or waived steps that still have something before them.
    passive: BTreeSet<u64>,
    /// Waived steps with nothing before them but others of this kind. They still hold back earlier
    /// writers of their keys, but nothing that is only reached through those.
    waived: BTreeSet<u64>,
}

impl Undo {
    fn new(nodes: &[u64], edges: &Edges, effects: &Effects) -> Self {
        let passive =
            nodes.iter().copied().filter(|node| is_passive(effects, EffectId(*node))).collect();
        let order = UndoOrder::new(nodes, edges);
        let mut undo = Undo { order, passive, waived: BTreeSet::new() };
        undo.pass(effects);
        undo
    }

    /// The steps that nothing before them holds back, highest id first. Failed ones are among them.
    pub fn ready(&self) -> impl Iterator<Item = EffectId> {
        self.order.ready().map(EffectId)
    }

    /// The waived steps that nothing but others of them holds back, highest id first.
    pub fn waived(&self) -> impl Iterator<Item = EffectId> {
        self.waived.iter().rev().copied().map(EffectId)
    }

    /// A step was finished or waived.
    fn end(&mut self, effects: &Effects, id: EffectId) {
        self.passive.insert(id.0);
        self.pass(effects);
    }

    fn pass(&mut self, effects: &Effects) {
        loop {
            let free: Vec<u64> =
                self.passive.iter().rev().copied().filter(|id| self.is_free(*id)).collect();
            if free.is_empty() {
                return;
            }
            for id in free {
                self.passive.remove(&id);
                let waived = effects
                    .get(EffectId(id))
                    .and_then(|effect| effect.step.as_ref())
                    .is_some_and(|step| step.is_waived());
                if waived {
                    self.waived.insert(id);
                    self.order.waive(id);
                } else {
                    self.order.finish(id);
                }
            }
        }
    }

    fn is_free(&self, id: u64) -> bool {
        self.order.is_ready(id)
            || (!self.waived.is_empty()
                && self.order.waits_for(id).iter().all(|other| self.waived.contains(other)))
    }
}

fn is_passive(effects: &Effects, id: EffectId) -> bool {
    effects
        .get(id)
        .and_then(|effect| effect.step.as_ref())
        .is_none_or(|step| step.is_finished() || step.is_waived())
}

impl Effect {
    /// It is doomed and counts in the order of the writers of its keys: it may have run, or its
    /// inverse has.
    pub fn is_undone_writer(&self) -> bool {
        (!self.is_deferred() || self.delivery.is_some())
            && self.step.as_ref().is_some_and(|step| !step.is_discarded())
    }
}

impl State {
    /// The members of all unfinished rollbacks, ascending, and the two relations among them (C48):
    /// a dependent goes before what it rests on, the later writer of a key before the earlier. Each
    /// BREAK whose order is in force is one more node, by its id, with what it holds back.
    pub fn undo_edges(&self) -> (Vec<u64>, Edges) {
        let mut nodes: Vec<u64> = Vec::new();
        for rollback in self.rollbacks.values().filter(|rollback| rollback.open) {
            let held = rollback.members.iter().filter(|id| self.effects.contains(**id));
            nodes.extend(held.map(|id| id.0));
        }
        nodes.sort_unstable();
        nodes.dedup();
        let mut edges = Vec::new();
        let mut writers: BTreeMap<&Key, Vec<(u64, u64)>> = BTreeMap::new();
        for node in &nodes {
            let Some(effect) = self.effects.get(EffectId(*node)) else { continue };
            for on in self.graph.dependencies(*node) {
                if nodes.binary_search(&on).is_ok() {
                    edges.push((*node, on, Relation::Dependency));
                }
            }
            if effect.is_undone_writer() {
                for key in &effect.writes {
                    writers.entry(key).or_default().push((effect.position, *node));
                }
            }
        }
        for chain in writers.values_mut() {
            chain.sort_unstable();
            chain.dedup();
            for pair in chain.windows(2) {
                edges.push((pair[1].1, pair[0].1, Relation::KeyOrder));
            }
            // A waived step holds back earlier writers also beyond those that are finished.
            chain.retain(|(_, node)| {
                let step = self.effects.get(EffectId(*node)).and_then(|known| known.step.as_ref());
                step.is_some_and(|step| !step.is_finished())
            });
            for pair in chain.windows(2) {
                edges.push((pair[1].1, pair[0].1, Relation::KeyOrder));
            }
        }
        self.add_break_order(&mut nodes, &mut edges);
        (nodes, edges)
    }

    /// The order in which inverses may start; built anew after the plan changed.
    pub fn undo_order(&mut self) -> &Undo {
        let order = if let Some(order) = self.order.take() {
            order
        } else {
            let (nodes, edges) = self.undo_edges();
            Undo::new(&nodes, &edges, &self.effects)
        };
        self.order.insert(order)
    }

    /// A step was finished or waived: what waited for it may go.
    pub(super) fn order_goes_on(&mut self, id: EffectId) {
        if let Some(order) = self.order.as_mut() {
            order.end(&self.effects, id);
        }
    }

    /// Every step of the unfinished rollbacks that is left, as one worker would take them.
    pub fn undo_sequence(&self) -> Vec<EffectId> {
        let (nodes, edges) = self.undo_edges();
        let mut order = UndoOrder::new(&nodes, &edges);
        let mut sequence = Vec::new();
        while let Some(next) = order.ready().next() {
            order.finish(next);
            let left = self
                .effects
                .get(EffectId(next))
                .and_then(|effect| effect.step.as_ref())
                .is_some_and(|step| !step.is_finished());
            if left {
                sequence.push(EffectId(next));
            }
        }
        sequence
    }

    /// Whether later writers keep the inverse of an effect from running (C49). A compare-and-set
    /// inverse looks for itself, unless its call reported late: then it knows what is there and not
    /// what was there before.
    pub fn guard(&self, id: EffectId) -> Guard {
        let Some(effect) = self.effects.get(id) else { return Guard::Free };
        let looks = effect.inverse.as_ref().is_some_and(|inverse| inverse.compare_and_set);
        if looks && !effect.late {
            return Guard::Free;
        }
        let mut live = BTreeSet::new();
        let mut committed = BTreeSet::new();
        for (key, entry) in effect.writes.iter().filter_map(|key| Some((key, self.keys.get(key)?)))
        {
            let later = entry.later.iter().filter(|later| later.position > effect.position);
            committed.extend(later.map(|later| (later.effect, key)));
            for writer in entry.writers.iter().filter_map(|writer| self.effects.get(*writer)) {
                if writer.position <= effect.position || !writer.is_writer() {
                    continue;
                }
                match writer.state {
                    EffectState::Live => live.insert(writer.id),
                    EffectState::Committed => committed.insert((writer.id, key)),
                    EffectState::Doomed | EffectState::Void => false,
                };
            }
        }
        match committed.first() {
            Some((writer, key)) => Guard::Conflict(*writer, (*key).clone()),
            None if live.is_empty() => Guard::Free,
            None => Guard::Live(live.into_iter().collect()),
        }
    }
}
