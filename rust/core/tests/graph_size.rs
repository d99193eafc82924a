//! Sizes at which recursion, or a cost that grows with the square, would show.
//!
//! `cargo test --release --test graph_size -- --ignored --nocapture` prints the speed.

// A test stops at the first surprise, and its numbers are small.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_precision_loss)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use effectstore::graph::{LiveGraph, Relation, Scratch, UndoOrder};
use effectstore::model::MemberSet;

/// Far above what linear time takes on a slow, busy machine, far below what quadratic time takes.
const LINEAR: Duration = Duration::from_secs(60);

/// Runs on a stack on which a recursion over the graph would not fit.
fn on_a_small_stack(work: impl FnOnce() + Send + 'static) {
    let start = Instant::now();
    let thread = std::thread::Builder::new().stack_size(256 * 1024).spawn(work).unwrap();
    thread.join().unwrap();
    assert!(start.elapsed() < LINEAR, "took {:?}", start.elapsed());
}

fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |bound| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    }
}

/// `count` effects, each resting on `degree` different ones of the `window` before it.
fn windowed(count: u64, degree: usize, window: u64) -> Vec<Vec<u64>> {
    let mut draw = numbers(42);
    (0..count)
        .map(|id| {
            let near = window.min(id);
            let mut deps = std::collections::BTreeSet::new();
            while deps.len() < degree.min(near as usize) {
                deps.insert(id - 1 - draw(near));
            }
            deps.into_iter().collect()
        })
        .collect()
}

fn graph_of(deps: &[Vec<u64>]) -> LiveGraph {
    let mut graph = LiveGraph::new();
    for (id, deps) in (0..).zip(deps) {
        assert!(graph.insert(id, deps));
    }
    graph
}

#[test]
fn a_chain_of_a_million() {
    on_a_small_stack(|| {
        const N: u64 = 1_000_000;
        let mut graph = LiveGraph::new();
        let mut scratch = Scratch::new();
        graph.insert(0, &[]);
        for id in 1..N {
            graph.insert(id, &[id - 1]);
        }
        let all: Vec<u64> = (0..N).collect();
        assert_eq!(graph.closure(&mut scratch, &[N - 1]), all);
        assert_eq!(graph.cascade(&mut scratch, &[0]), all);
        assert_eq!(graph.path(&mut scratch, N - 1, 0).unwrap().len(), all.len());
        assert_eq!(graph.uncovered(&mut scratch, &all), vec![N - 1]);
        // Voids in the middle leave the chain whole.
        for id in (1..N - 1).step_by(2) {
            graph.inherit(id);
        }
        assert_eq!(graph.closure(&mut scratch, &[N - 1]).len() as u64, N / 2 + 1);
        assert_eq!(graph.remove_many(&all) as u64, N / 2 + 1);
        assert!(graph.is_empty());

        let edges: Vec<_> = (1..N).map(|id| (id, id - 1, Relation::Dependency)).collect();
        let mut order = UndoOrder::new(&all, &edges);
        for id in (0..N).rev() {
            assert!(order.is_ready(id));
            order.finish(id);
        }
        assert_eq!(order.ready().count(), 0);
    });
}

#[test]
fn a_ring_of_ten_thousand() {
    on_a_small_stack(|| {
        const N: u64 = 10_000;
        let mut graph = LiveGraph::new();
        let mut scratch = Scratch::new();
        graph.insert(0, &[]);
        for id in 1..N {
            graph.insert(id, &[id - 1]);
        }
        assert!(graph.add_dependency(0, N - 1));
        let all: Vec<u64> = (0..N).collect();
        assert_eq!(graph.closure(&mut scratch, &[5]), all);
        assert_eq!(graph.cascade(&mut scratch, &[5]), all);
        assert_eq!(graph.path(&mut scratch, 5, 6).unwrap().len(), all.len());
        assert_eq!(graph.uncovered(&mut scratch, &all), vec![N - 1]);
        assert_eq!(graph.uncovered(&mut scratch, &[3, 70, 9]), vec![70]);

        let mut edges: Vec<_> = (1..N).map(|id| (id, id - 1, Relation::KeyOrder)).collect();
        edges.push((0, N - 1, Relation::Dependency));
        edges.push((5, N, Relation::Dependency));
        let nodes: Vec<u64> = (0..=N).collect();
        let mut order = UndoOrder::new(&nodes, &edges);
        for id in (0..N).rev() {
            assert_eq!(order.ready().next(), Some(id));
            assert!(!order.is_ready(N));
            order.finish(id);
        }
        assert!(order.is_ready(N));

        // Voids eat the ring up, until one effect is left that rests on nothing.
        for id in 1..N {
            assert!(!graph.inherit(id).is_empty());
        }
        assert_eq!((graph.len(), graph.dependencies(0)), (1, vec![]));
    });
}

#[test]
fn a_hundred_thousand_readers_of_one_effect() {
    on_a_small_stack(|| {
        const N: u64 = 100_000;
        let mut graph = LiveGraph::new();
        let mut scratch = Scratch::new();
        graph.insert(1, &[]);
        graph.insert(2, &[1]);
        for id in 3..N + 3 {
            graph.insert(id, &[2]);
        }
        assert_eq!(graph.cascade(&mut scratch, &[1]).len() as u64, N + 2);
        assert_eq!(graph.dependents(2).len() as u64, N);
        // They leave one by one, each from the list of what it rested on.
        for id in 3..N / 2 + 3 {
            assert!(graph.remove(id));
        }
        assert_eq!(graph.dependents(2).len() as u64, N / 2);
        assert_eq!(graph.inherit(2).len() as u64, N / 2);
        assert_eq!(graph.dependents(1).len() as u64, N / 2);
        assert!(graph.remove(1));
        assert_eq!(graph.dependencies(N), Vec::<u64>::new());

        let nodes: Vec<u64> = (0..N).collect();
        let edges: Vec<_> = (1..N).map(|id| (id, 0, Relation::Dependency)).collect();
        let mut order = UndoOrder::new(&nodes, &edges);
        assert_eq!(order.waits_for(0).len() as u64, N - 1);
        for id in (1..N).rev() {
            assert_eq!(order.ready().next(), Some(id));
            order.finish(id);
        }
        assert!(order.is_ready(0));
    });
}

/// An old effect on which a million short-lived ones rested, one after another, costs no more at
/// the end than at the beginning.
#[test]
fn a_straggler_gathers_nothing() {
    on_a_small_stack(|| {
        let mut graph = LiveGraph::new();
        let mut scratch = Scratch::new();
        graph.insert(1, &[]);
        let spread = 1_000;
        for n in 1..1_000_000u64 {
            graph.insert(n * spread, &[1, (n - 1) * spread]);
            if n > 10 {
                assert!(graph.remove((n - 10) * spread));
            }
        }
        assert_eq!(graph.len(), 11);
        let start = Instant::now();
        for _ in 0..1_000 {
            assert_eq!(graph.dependents(1).len(), 10);
            assert_eq!(graph.cascade(&mut scratch, &[1]).len(), 11);
        }
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    });
}

fn median_ns(rounds: usize, mut work: impl FnMut()) -> f64 {
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[rounds / 2].as_secs_f64() * 1e9
}

#[test]
#[ignore = "prints the speed, to be run in release"]
fn speed() {
    for (count, degree) in [(1_000u64, 64usize), (10_000, 8), (10_000, 64), (100_000, 64)] {
        let deps = windowed(count, degree, 256);
        let edges = deps.iter().map(Vec::len).sum::<usize>() as f64;
        let graph = graph_of(&deps);
        let mut scratch = Scratch::new();
        let ids: Vec<u64> = (0..count).collect();
        let tail = &ids[ids.len() - 256..];
        let rounds = 201;
        let report = |what: &str, ns: f64| {
            println!(
                "{count:>7} x {degree:<3} {what:<28} {:>9.1} us {:>6.2} ns/edge",
                ns / 1e3,
                ns / edges
            );
        };
        let found = graph.closure(&mut scratch, tail).len();
        assert!(found as u64 > count - count / 100);
        report(
            "closure",
            median_ns(rounds, || {
                black_box(graph.closure(&mut scratch, tail));
            }),
        );
        report(
            "cascade",
            median_ns(rounds, || {
                black_box(graph.cascade(&mut scratch, &ids[..256]));
            }),
        );
        report(
            "uncovered, last two",
            median_ns(rounds, || {
                black_box(graph.uncovered(&mut scratch, &[count - 1, count - 2]));
            }),
        );
        report(
            "insert all",
            median_ns(11, || {
                black_box(graph_of(&deps));
            }),
        );
        report(
            "insert all as one",
            median_ns(11, || {
                let mut graph = LiveGraph::new();
                graph.insert_many((0..).zip(&deps));
                black_box(graph);
            }),
        );
        let mut settled: Vec<LiveGraph> = (0..11).map(|_| graph.clone()).collect();
        let half = &ids[..ids.len() / 2];
        report(
            "remove half",
            median_ns(11, || {
                let mut one = settled.pop().unwrap();
                black_box(one.remove_many(half));
                std::mem::forget(one);
            }),
        );
        let edges: Vec<_> = (0..)
            .zip(&deps)
            .flat_map(|(id, deps)| deps.iter().map(move |&dep| (id, dep, Relation::Dependency)))
            .collect();
        report(
            "undo order, made",
            median_ns(11, || {
                black_box(UndoOrder::new(&ids, &edges));
            }),
        );
        let made = UndoOrder::new(&ids, &edges);
        let mut orders: Vec<UndoOrder> = (0..11).map(|_| made.clone()).collect();
        report(
            "undo order, run through",
            median_ns(11, || {
                let mut order = orders.pop().unwrap();
                while let Some(id) = order.ready().next() {
                    order.finish(id);
                }
            }),
        );
        let set = MemberSet::from_sorted(ids.clone());
        report(
            "member set, encoded",
            median_ns(rounds, || {
                black_box(minicbor::to_vec(&set).unwrap());
            }),
        );
    }
}
