//! The undo order against a model that looks at every pair of nodes.

// A test stops at the first surprise, and its numbers are small.
#![allow(clippy::cast_possible_truncation)]

use std::collections::{BTreeMap, BTreeSet};

use effectstore::graph::{Relation, UndoOrder};
use proptest::prelude::*;

type Edge = (u64, u64, Relation);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Open,
    Waived,
    Finished,
}

/// Who reaches whom by brute force, and the rules of the order written as they are said.
#[derive(Debug)]
struct Model {
    status: BTreeMap<u64, Status>,
    edges: Vec<Edge>,
    reach: BTreeSet<(u64, u64)>,
}

impl Model {
    fn new(nodes: &[u64], edges: &[Edge]) -> Self {
        let status: BTreeMap<u64, Status> = nodes.iter().map(|&id| (id, Status::Open)).collect();
        let edges: Vec<Edge> = edges
            .iter()
            .copied()
            .filter(|(first, then, _)| {
                first != then && status.contains_key(first) && status.contains_key(then)
            })
            .collect();
        let mut reach: BTreeSet<(u64, u64)> = status.keys().map(|&id| (id, id)).collect();
        reach.extend(edges.iter().map(|&(first, then, _)| (first, then)));
        for &middle in status.keys() {
            for &from in status.keys() {
                for &to in status.keys() {
                    if reach.contains(&(from, middle)) && reach.contains(&(middle, to)) {
                        reach.insert((from, to));
                    }
                }
            }
        }
        Self { status, edges, reach }
    }

    fn one_ring(&self, left: u64, right: u64) -> bool {
        self.reach.contains(&(left, right)) && self.reach.contains(&(right, left))
    }

    fn ring(&self, id: u64) -> Vec<u64> {
        self.status.keys().copied().filter(|&other| self.one_ring(id, other)).collect()
    }

    fn is(&self, id: u64, status: Status) -> bool {
        self.status.get(&id) == Some(&status)
    }

    /// What holds back `id`, whether it is finished or not.
    fn holding(&self, id: u64) -> BTreeSet<u64> {
        let ring = self.ring(id);
        let mut holding = BTreeSet::new();
        for &(first, then, relation) in &self.edges {
            let on_key = relation == Relation::KeyOrder;
            if self.one_ring(first, id) {
                if then == id && first > id && on_key && self.is(first, Status::Waived) {
                    holding.insert(first);
                }
            } else if ring.contains(&then) {
                let open = |other: &u64| self.is(*other, Status::Open);
                holding.extend(self.ring(first).into_iter().filter(open));
                if on_key && then == id && self.is(first, Status::Waived) {
                    holding.insert(first);
                }
            }
        }
        holding
            .extend(ring.into_iter().filter(|&other| other > id && self.is(other, Status::Open)));
        holding
    }

    fn ready(&self) -> Vec<u64> {
        let open = self.status.keys().rev().copied().filter(|&id| self.is(id, Status::Open));
        open.filter(|&id| self.holding(id).is_empty()).collect()
    }
}

fn compare(order: &UndoOrder, model: &Model) {
    let ready = model.ready();
    assert_eq!(order.ready().collect::<Vec<_>>(), ready, "{model:?}");
    for &id in model.status.keys() {
        let finished = model.is(id, Status::Finished);
        assert_eq!(order.is_ready(id), ready.contains(&id));
        assert_eq!(order.is_finished(id), finished);
        let holding = if finished { BTreeSet::new() } else { model.holding(id) };
        assert_eq!(order.waits_for(id), holding.into_iter().collect::<Vec<_>>(), "{id} {model:?}");
    }
}

fn relation() -> impl Strategy<Value = Relation> {
    prop_oneof![2 => Just(Relation::Dependency), 1 => Just(Relation::KeyOrder)]
}

/// Mostly from newer to older, as edges are; some the other way, which makes rings.
fn edges(nodes: u64) -> impl Strategy<Value = Vec<Edge>> {
    let edge =
        (1..=nodes, 1..=nodes + 1, relation(), 0..8u8).prop_map(|(left, right, why, turn)| {
            let (low, high) = (left.min(right), left.max(right));
            if turn == 0 { (low * 3, high * 3, why) } else { (high * 3, low * 3, why) }
        });
    prop::collection::vec(edge, 0..(3 * nodes as usize))
}

fn world() -> impl Strategy<Value = (Vec<u64>, Vec<Edge>)> {
    (1u64..16).prop_flat_map(|nodes| {
        let ids = Just((1..=nodes).map(|n| n * 3).collect::<Vec<_>>()).prop_shuffle();
        (ids, edges(nodes))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Any sequence of outcomes, sensible or not, leaves the same state as in the model.
    #[test]
    fn every_state_agrees_with_the_rules(
        (nodes, edges) in world(),
        steps in prop::collection::vec((0u8..5, 1u64..17), 0..60),
    ) {
        let mut order = UndoOrder::new(&nodes, &edges);
        let mut model = Model::new(&nodes, &edges);
        compare(&order, &model);
        for (what, n) in steps {
            let id = n * 3;
            let (was, status) = (model.status.get(&id).copied(), match what {
                0..=2 => Status::Finished,
                3 => Status::Waived,
                _ => Status::Open,
            });
            match status {
                Status::Finished => order.finish(id),
                Status::Waived => order.waive(id),
                Status::Open => order.reopen(id),
            }
            let stays = was.is_none() || was == Some(Status::Finished) && status == Status::Waived;
            if !stays {
                model.status.insert(id, status);
            }
            compare(&order, &model);
        }
    }

    /// Whichever of the ready ones is run, all get their turn, after all that they wait for.
    #[test]
    fn every_run_is_an_extension_of_the_order(
        (nodes, edges) in world(),
        choices in prop::collection::vec(any::<prop::sample::Index>(), 20),
        highest in any::<bool>(),
    ) {
        let mut order = UndoOrder::new(&nodes, &edges);
        let model = Model::new(&nodes, &edges);
        let mut run: Vec<u64> = Vec::new();
        for choice in choices.iter().take(nodes.len()) {
            let ready: Vec<u64> = order.ready().collect();
            prop_assert!(!ready.is_empty(), "stuck after {run:?}");
            prop_assert!(ready.is_sorted_by(|left, right| left > right));
            let next = if highest { ready[0] } else { ready[choice.index(ready.len())] };
            order.finish(next);
            run.push(next);
        }
        prop_assert_eq!(order.ready().count(), 0);
        let turn: BTreeMap<u64, usize> = run.iter().copied().zip(0..).collect();
        prop_assert_eq!(turn.len(), nodes.len());
        for (&first, &at) in &turn {
            for (&then, &later) in &turn {
                if first != then && model.reach.contains(&(first, then)) {
                    // Inside a ring the higher one is first; outside, whatever reaches the other.
                    let ring = model.one_ring(first, then);
                    prop_assert_eq!(at < later, !ring || first > then, "{} {}", first, then);
                }
            }
        }
    }

    /// Under `halt` exactly what comes after the failed one, or after its ring, gets no turn.
    #[test]
    fn a_halt_blocks_what_comes_after_and_nothing_else(
        (nodes, edges) in world(), failed in any::<prop::sample::Index>(),
    ) {
        let failed = nodes[failed.index(nodes.len())];
        let mut order = UndoOrder::new(&nodes, &edges);
        let model = Model::new(&nodes, &edges);
        while let Some(next) = order.ready().find(|&id| id != failed) {
            order.finish(next);
        }
        for &id in &nodes {
            let ring = model.one_ring(failed, id);
            let blocked = model.reach.contains(&(failed, id)) && (!ring || id <= failed);
            prop_assert_eq!(order.is_finished(id), !blocked, "{}", id);
        }
    }
}

const D: Relation = Relation::Dependency;
const K: Relation = Relation::KeyOrder;

fn ready(order: &UndoOrder) -> Vec<u64> {
    order.ready().collect()
}

#[test]
fn a_diamond_is_undone_from_its_tip() {
    let mut order = UndoOrder::new(&[1, 2, 3, 4], &[(4, 2, D), (4, 3, D), (2, 1, D), (3, 1, D)]);
    assert_eq!(ready(&order), [4]);
    assert_eq!(order.waits_for(1), [2, 3]);
    order.finish(4);
    assert_eq!(ready(&order), [3, 2]);
    order.finish(2);
    assert_eq!((ready(&order), order.waits_for(1)), (vec![3], vec![3]));
    order.finish(3);
    assert_eq!(ready(&order), [1]);
}

#[test]
fn waiving_releases_what_it_rested_on_but_not_earlier_writers() {
    let mut order = UndoOrder::new(&[1, 2, 3], &[(3, 2, D), (3, 1, D), (3, 1, K)]);
    order.waive(3);
    assert_eq!(ready(&order), [2]);
    assert_eq!(order.waits_for(1), [3]);
    order.reopen(3);
    assert_eq!((ready(&order), order.waits_for(2)), (vec![3], vec![3]));
    order.waive(3);
    order.finish(3);
    assert_eq!(ready(&order), [2, 1]);
}

#[test]
fn a_ring_starts_whole_and_is_waited_for_whole() {
    let edges = [(9, 2, D), (2, 3, D), (3, 4, K), (4, 2, D), (3, 1, D)];
    let mut order = UndoOrder::new(&[1, 2, 3, 4, 9], &edges);
    assert_eq!(ready(&order), [9]);
    assert_eq!(order.waits_for(4), [9]);
    order.finish(9);
    for next in [4, 3, 2] {
        assert_eq!(ready(&order), [next]);
        assert!(order.waits_for(1).contains(&2));
        order.finish(next);
    }
    assert_eq!(ready(&order), [1]);
    order.reopen(3);
    assert_eq!((ready(&order), order.waits_for(1)), (vec![3], vec![3]));
}

#[test]
fn what_is_not_a_node_changes_nothing() {
    let mut order = UndoOrder::new(&[5, 5], &[(5, 5, D), (7, 5, D), (5, 7, K)]);
    order.finish(7);
    order.waive(0);
    order.reopen(u64::MAX);
    assert_eq!(ready(&order), [5]);
    assert!(!order.is_finished(7) && !order.is_ready(7) && order.waits_for(7).is_empty());
    assert_eq!(UndoOrder::new(&[], &[]).ready().count(), 0);
}
