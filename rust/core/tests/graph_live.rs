//! The live graph against a naive model made of ordered sets.

// A test stops at the first surprise, and its numbers are small.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use effectstore::graph::{LiveGraph, Scratch};
use proptest::prelude::*;

/// Each id with what it rests on; only ids present are named.
#[derive(Debug, Default, Clone)]
struct Model(BTreeMap<u64, BTreeSet<u64>>);

impl Model {
    fn insert(&mut self, id: u64, deps: &[u64]) -> bool {
        if self.0.contains_key(&id) {
            return false;
        }
        let present = deps.iter().copied().filter(|dep| self.0.contains_key(dep)).collect();
        self.0.insert(id, present);
        true
    }

    fn add_dependency(&mut self, from: u64, on: u64) -> bool {
        if from == on || !self.0.contains_key(&on) {
            return false;
        }
        self.0.get_mut(&from).is_some_and(|deps| deps.insert(on))
    }

    fn remove(&mut self, id: u64) -> bool {
        let there = self.0.remove(&id).is_some();
        for deps in self.0.values_mut() {
            deps.remove(&id);
        }
        there
    }

    fn dependents(&self, id: u64) -> BTreeSet<u64> {
        self.0.iter().filter(|(_, deps)| deps.contains(&id)).map(|(&other, _)| other).collect()
    }

    fn inherit(&mut self, id: u64) -> Vec<u64> {
        let Some(inherited) = self.0.get(&id).cloned() else { return Vec::new() };
        let dependents = self.dependents(id);
        for dependent in &dependents {
            let deps = self.0.get_mut(dependent).unwrap();
            deps.extend(inherited.iter().filter(|&dep| dep != dependent));
        }
        self.remove(id);
        dependents.into_iter().collect()
    }

    /// All that is reached from `targets` in steps of `step`, the targets included, through ids
    /// that `keep` accepts. Grows the set until nothing changes.
    fn reach(
        &self,
        targets: &[u64],
        step: impl Fn(u64) -> BTreeSet<u64>,
        keep: impl Fn(u64) -> bool,
    ) -> BTreeSet<u64> {
        let accepted = |id: &u64| self.0.contains_key(id) && keep(*id);
        let mut set: BTreeSet<u64> = targets.iter().copied().filter(accepted).collect();
        loop {
            let more: BTreeSet<u64> =
                set.iter().flat_map(|&id| step(id)).filter(accepted).collect();
            let size = set.len();
            set.extend(more);
            if set.len() == size {
                return set;
            }
        }
    }

    fn needs(&self, id: u64) -> BTreeSet<u64> {
        self.0.get(&id).cloned().unwrap_or_default()
    }

    fn closure(&self, targets: &[u64]) -> BTreeSet<u64> {
        self.reach(targets, |id| self.needs(id), |_| true)
    }

    /// Number of steps from one to the other, by widening the set of what is near.
    fn distance(&self, from: u64, to: u64) -> Option<usize> {
        let mut near = BTreeSet::from([from]);
        for distance in 0..=self.0.len() {
            if near.contains(&to) {
                return Some(distance);
            }
            near.extend(near.clone().into_iter().flat_map(|id| self.needs(id)));
        }
        None
    }

    fn uncovered(&self, candidates: &[u64]) -> Vec<u64> {
        let present: BTreeSet<u64> =
            candidates.iter().copied().filter(|id| self.0.contains_key(id)).collect();
        let below: BTreeMap<u64, BTreeSet<u64>> =
            present.iter().map(|&id| (id, self.closure(&[id]))).collect();
        let stays = |id: u64| {
            present.iter().all(|&other| {
                let covers = other != id && below[&other].contains(&id);
                let ring = below[&id].contains(&other);
                !covers || (ring && other < id)
            })
        };
        present.iter().copied().filter(|&id| stays(id)).collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u64, Vec<u64>),
    InsertMany(Vec<(u64, Vec<u64>)>),
    Late(u64, u64),
    Remove(u64),
    RemoveMany(Vec<u64>),
    Inherit(u64),
}

/// Few ids, so that steps meet; spread over several pages, so that pages come and go.
fn id() -> impl Strategy<Value = u64> {
    (0u64..40).prop_map(|n| n * 13 + 1)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (id(), prop::collection::vec(id(), 0..6)).prop_map(|(id, deps)| Step::Insert(id, deps)),
        1 => prop::collection::vec((id(), prop::collection::vec(id(), 0..6)), 0..12)
            .prop_map(Step::InsertMany),
        3 => (id(), id()).prop_map(|(from, on)| Step::Late(from, on)),
        1 => id().prop_map(Step::Remove),
        1 => prop::collection::vec(id(), 0..12).prop_map(Step::RemoveMany),
        1 => id().prop_map(Step::Inherit),
    ]
}

fn run(graph: &mut LiveGraph, model: &mut Model, step: &Step) {
    match step {
        Step::Insert(id, deps) => assert_eq!(graph.insert(*id, deps), model.insert(*id, deps)),
        Step::InsertMany(items) => {
            let new = items.iter().filter(|(id, deps)| model.insert(*id, deps)).count();
            assert_eq!(graph.insert_many(items.iter().map(|(id, deps)| (*id, deps))), new);
        }
        Step::Late(from, on) => {
            assert_eq!(graph.add_dependency(*from, *on), model.add_dependency(*from, *on));
        }
        Step::Remove(id) => assert_eq!(graph.remove(*id), model.remove(*id)),
        Step::RemoveMany(ids) => {
            let removed = ids.iter().filter(|&&id| model.remove(id)).count();
            assert_eq!(graph.remove_many(ids), removed);
        }
        Step::Inherit(id) => assert_eq!(graph.inherit(*id), model.inherit(*id)),
    }
}

fn list(set: BTreeSet<u64>) -> Vec<u64> {
    set.into_iter().collect()
}

/// Everything that can be asked, for every id.
fn compare(graph: &LiveGraph, scratch: &mut Scratch, model: &Model) {
    assert_eq!(graph.len(), model.0.len());
    assert_eq!(graph.is_empty(), model.0.is_empty());
    assert_eq!(graph.ids(), model.0.keys().copied().collect::<Vec<_>>());
    for n in 0..40 {
        let id = n * 13 + 1;
        assert_eq!(graph.contains(id), model.0.contains_key(&id));
        assert!(!graph.contains(id + 1));
        assert_eq!(graph.dependencies(id), list(model.needs(id)));
        assert_eq!(graph.dependents(id), list(model.dependents(id)));
        assert_eq!(graph.closure(scratch, &[id]), list(model.closure(&[id])));
        let cascade = model.reach(&[id], |id| model.dependents(id), |_| true);
        assert_eq!(graph.cascade(scratch, &[id]), list(cascade));
    }
}

fn compare_paths(graph: &LiveGraph, scratch: &mut Scratch, model: &Model) {
    for from in (0..40).map(|n| n * 13 + 1) {
        for to in (0..40).map(|n| n * 13 + 1) {
            let path = graph.path(scratch, from, to);
            let present = model.0.contains_key(&from) && model.0.contains_key(&to);
            let distance = model.distance(from, to).filter(|_| present);
            assert_eq!(path.as_ref().map(|path| path.len() - 1), distance, "{from} to {to}");
            let Some(path) = path else { continue };
            assert_eq!((path[0], path[path.len() - 1]), (from, to));
            assert!(path.windows(2).all(|pair| model.0[&pair[0]].contains(&pair[1])));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_answer_agrees_with_sets(steps in prop::collection::vec(step(), 0..120)) {
        let (mut graph, mut model) = (LiveGraph::new(), Model::default());
        let mut scratch = Scratch::new();
        for (count, step) in steps.iter().enumerate() {
            run(&mut graph, &mut model, step);
            if count % 16 == 0 {
                compare(&graph, &mut scratch, &model);
            }
        }
        compare(&graph, &mut scratch, &model);
        compare_paths(&graph, &mut scratch, &model);
    }

    #[test]
    fn uncovered_and_filtered_walks_agree_with_sets(
        steps in prop::collection::vec(step(), 0..120),
        questions in prop::collection::vec((prop::collection::vec(id(), 0..10), 0u64..5), 1..8),
    ) {
        let (mut graph, mut model) = (LiveGraph::new(), Model::default());
        let mut scratch = Scratch::new();
        for step in &steps {
            run(&mut graph, &mut model, step);
        }
        for (ids, modulus) in questions {
            prop_assert_eq!(graph.uncovered(&mut scratch, &ids), model.uncovered(&ids));
            let keep = |id: u64| id % 5 != modulus;
            let mut asked = BTreeSet::new();
            let once = |id| {
                assert!(asked.insert(id), "asked twice about {id}");
                keep(id)
            };
            let closure = model.reach(&ids, |id| model.needs(id), keep);
            prop_assert_eq!(graph.closure_where(&mut scratch, &ids, once), list(closure));
            let cascade = model.reach(&ids, |id| model.dependents(id), keep);
            prop_assert_eq!(graph.cascade_where(&mut scratch, &ids, keep), list(cascade));
        }
    }

    /// Long enough for renumberings in the middle, with a straggler that outlives them.
    #[test]
    fn answers_survive_renumbering(seed in any::<u64>(), late in 0u64..4) {
        let (mut graph, mut model) = (LiveGraph::new(), Model::default());
        let mut scratch = Scratch::new();
        let mut random = seed;
        let mut draw = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % bound
        };
        run(&mut graph, &mut model, &Step::Insert(7, vec![]));
        for id in 100..4_000 {
            let deps: Vec<u64> = (0..3).map(|_| id - 1 - draw(30)).chain([7]).collect();
            run(&mut graph, &mut model, &Step::Insert(id, deps));
            if draw(4) < late {
                run(&mut graph, &mut model, &Step::Late(id - draw(20), id));
            }
            if draw(8) == 0 {
                run(&mut graph, &mut model, &Step::Inherit(id - draw(25)));
            }
            if id > 130 {
                run(&mut graph, &mut model, &Step::Remove(id - 30));
            }
            if id % 500 == 0 {
                let ids = graph.ids();
                prop_assert_eq!(&ids, &model.0.keys().copied().collect::<Vec<_>>());
                prop_assert_eq!(graph.dependents(7), list(model.dependents(7)));
                prop_assert_eq!(graph.closure(&mut scratch, &ids[20..]), list(model.closure(&ids[20..])));
                prop_assert_eq!(graph.uncovered(&mut scratch, &ids), model.uncovered(&ids));
                for &id in &ids {
                    prop_assert_eq!(graph.dependencies(id), list(model.needs(id)));
                    prop_assert_eq!(graph.dependents(id), list(model.dependents(id)));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Large enough that walks go on as sweeps, with gaps, dead slots, and edges to newer ids now and
    /// then, under which they must not.
    #[test]
    fn walks_of_many_agree_with_sets(
        seed in any::<u64>(),
        count in 200u64..900,
        reach in 1u64..400,
        late in 0u64..3,
    ) {
        let (mut graph, mut model) = (LiveGraph::new(), Model::default());
        let mut scratch = Scratch::new();
        let mut random = seed;
        let mut draw = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % bound
        };
        for id in (0..count).map(|place| 5 + place * 2) {
            let deps: Vec<u64> = (0..3).map(|_| id.saturating_sub(2 * (1 + draw(reach)))).collect();
            run(&mut graph, &mut model, &Step::Insert(id, deps));
            if draw(6) == 0 {
                run(&mut graph, &mut model, &Step::Remove(5 + 2 * draw(count)));
            }
            if draw(300) < late {
                run(&mut graph, &mut model, &Step::Late(id.saturating_sub(2 * draw(reach)), id));
            }
        }
        let dependents: BTreeMap<u64, BTreeSet<u64>> =
            model.0.keys().map(|&id| (id, model.dependents(id))).collect();
        for _ in 0..6 {
            let targets: Vec<u64> = (0..=draw(4)).map(|_| 5 + 2 * draw(count)).collect();
            let without = 5 + 2 * draw(40);
            let keep = |id: u64| id % 43 != without % 43;
            for kept in [false, true] {
                let keep = |id: u64| !kept || keep(id);
                let below = walk(&targets, &model.0, keep);
                prop_assert_eq!(graph.closure_where(&mut scratch, &targets, keep), below);
                let above = walk(&targets, &dependents, keep);
                prop_assert_eq!(graph.cascade_where(&mut scratch, &targets, keep), above);
            }
        }
        let all = graph.ids();
        prop_assert_eq!(graph.closure(&mut scratch, &all), all.clone());
        prop_assert_eq!(graph.closure(&mut scratch, &all[1..]), walk(&all[1..], &model.0, |_| true));
    }
}

/// Everything that is reached along edges from targets that are there, through ids that `keep` accepts.
fn walk(
    targets: &[u64],
    edges: &BTreeMap<u64, BTreeSet<u64>>,
    keep: impl Fn(u64) -> bool,
) -> Vec<u64> {
    let mut found = BTreeSet::new();
    let mut left = targets.to_vec();
    while let Some(id) = left.pop() {
        if let Some(next) = edges.get(&id).filter(|_| keep(id) && found.insert(id)) {
            left.extend(next);
        }
    }
    list(found)
}

#[test]
fn ids_inserted_out_of_order_come_out_sorted() {
    let mut graph = LiveGraph::new();
    let mut scratch = Scratch::new();
    graph.insert(1, &[]);
    for id in (2..2_000).rev() {
        assert!(graph.insert(id, &[1, id + 1]));
    }
    assert_eq!(graph.closure(&mut scratch, &[2]), (1..2_000).collect::<Vec<_>>());
    assert_eq!(graph.cascade(&mut scratch, &[1]), (1..2_000).collect::<Vec<_>>());
    assert_eq!(graph.uncovered(&mut scratch, &[2, 1_000, 1_999]), vec![2]);
    assert_eq!(graph.path(&mut scratch, 2, 5), Some(vec![2, 3, 4, 5]));
}

#[test]
fn of_a_ring_the_newest_stays_unless_something_outside_rests_on_it() {
    let mut graph = LiveGraph::new();
    let mut scratch = Scratch::new();
    graph.insert(1, &[]);
    graph.insert(2, &[1]);
    graph.insert(3, &[2]);
    assert!(graph.add_dependency(1, 3));
    assert!(!graph.add_dependency(1, 3));
    assert_eq!(graph.uncovered(&mut scratch, &[1, 2]), vec![2]);
    assert_eq!(graph.uncovered(&mut scratch, &[3, 1, 2, 2]), vec![3]);
    graph.insert(4, &[1]);
    assert_eq!(graph.uncovered(&mut scratch, &[1, 2, 3, 4]), vec![4]);
    graph.insert(5, &[]);
    assert_eq!(graph.uncovered(&mut scratch, &[1, 2, 3, 5]), vec![3, 5]);
}

#[test]
fn a_void_member_of_a_ring_makes_nothing_rest_on_itself() {
    let mut graph = LiveGraph::new();
    graph.insert(1, &[]);
    graph.insert(2, &[1]);
    graph.add_dependency(1, 2);
    assert_eq!(graph.inherit(2), vec![1]);
    assert_eq!(graph.dependencies(1), Vec::<u64>::new());
    assert_eq!(graph.dependents(1), Vec::<u64>::new());
}

#[test]
fn the_largest_number_is_not_an_id() {
    let mut graph = LiveGraph::new();
    assert!(!graph.insert(u64::MAX, &[]));
    assert!(graph.insert(u64::MAX - 1, &[u64::MAX]));
    assert!(graph.insert(0, &[u64::MAX - 1]));
    assert_eq!(graph.ids(), vec![0, u64::MAX - 1]);
}

#[test]
fn a_walk_cut_short_by_a_panic_leaves_the_scratch_usable() {
    let mut graph = LiveGraph::new();
    let mut scratch = Scratch::new();
    graph.insert(1, &[]);
    graph.insert(2, &[1]);
    let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        graph.closure_where(&mut scratch, &[2], |id| if id == 1 { panic!("cut") } else { true })
    }));
    assert!(cut.is_err());
    assert_eq!(graph.closure(&mut scratch, &[2]), vec![1, 2]);
    for id in 3..1_000 {
        graph.insert(id, &[id - 1, id / 2]);
    }
    let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        graph.cascade_where(&mut scratch, &[1], |id| if id == 700 { panic!("cut") } else { true })
    }));
    assert!(cut.is_err());
    assert_eq!(graph.closure(&mut scratch, &[3]), vec![1, 2, 3]);
    assert_eq!(graph.cascade(&mut scratch, &[998]), vec![998, 999]);
}

#[test]
fn the_graph_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<LiveGraph>();
    shared::<Scratch>();
}
