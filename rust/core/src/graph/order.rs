//! Which inverses may start.
//!
//! An edge `(first, then)` holds `then` back until the inverse of `first` is finished. Rings of
//! edges are condensed: a ring counts as one thing, so that nothing waits on itself.
//!
//! Invariants, for an edge from a ring `P` to another ring `Q` (most rings have one member):
//! - the edge holds `Q` back while some member of `P` is open (neither finished nor waived); after
//!   that, if it is a key order and its own `first` is waived, it holds back its own `then` alone;
//! - `holds[Q]` counts the edges that hold `Q` back; no member of `Q` is ready while it is not zero;
//! - of a ring only its highest open member may be ready, and it is held back as long as a waived
//!   node comes before it on a key, above it in its ring or in a ring that holds nothing else back
//!   (`key_holds`);
//! - `ready` holds exactly the members that are ready.

use std::collections::BTreeSet;

use super::components::{Grouped, components};

/// Why one inverse must be finished before another one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Relation {
    /// The first effect rests on the other one.
    Dependency,
    /// The first effect wrote a key after the other one.
    KeyOrder,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    /// The place at the other end.
    end: u32,
    relation: Relation,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Open,
    Waived,
    Finished,
}

/// The order of the inverses of a set of effects, and how far it has come.
///
/// Of what is ready, the highest id goes first. The members of a ring go one after another, highest
/// id first, when nothing outside of the ring holds any of them back; what comes after a ring waits
/// for all of it. Edges inside a ring against that order do not count.
///
/// Over a whole life the cost is linear in nodes and edges, plus the logarithm of the number of
/// nodes for each step; each [`reopen`](Self::reopen) may cost the edges out of the ring again.
/// Ids that are not among the nodes are never ready, never finished, and change nothing.
#[derive(Debug, Clone)]
pub struct UndoOrder {
    /// The nodes, ascending; a place in here stands for the node everywhere below.
    ids: Vec<u64>,
    after: Grouped<Edge>,
    before: Grouped<Edge>,
    ring_of: Vec<u32>,
    /// Members of each ring, ascending.
    members: Grouped<u32>,
    status: Vec<Status>,
    /// Open members of each ring.
    open: Vec<u32>,
    /// Edges that hold each ring back.
    holds: Vec<usize>,
    /// For each node, waived nodes that precede it on a key: members of its own ring above it, and
    /// of other rings that have no open member.
    key_holds: Vec<u32>,
    /// (ring, member) for the open members of rings with more than one member.
    open_members: BTreeSet<(u32, u32)>,
    /// The member of each ring that is in `ready`.
    ready_of: Vec<Option<u32>>,
    ready: BTreeSet<u32>,
}

impl UndoOrder {
    /// The order of `nodes` under `edges`, each `(first, then, why)`: the inverse of `first` must
    /// be finished before that of `then` starts. Nodes and edges may come in any order and more
    /// than once; edges of a node with itself, or with what is not a node, do not count. Nodes
    /// beyond 2^32 - 1 would not fit and are left out, lowest last.
    pub fn new(nodes: &[u64], edges: &[(u64, u64, Relation)]) -> Self {
        let mut ids = nodes.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        ids.truncate(count as usize);
        let index = Index::new(&ids);
        let places: Vec<(u32, u32, Relation)> = edges
            .iter()
            .filter_map(|&(first, then, why)| Some((index.place(first)?, index.place(then)?, why)))
            .filter(|(first, then, _)| first != then)
            .collect();
        let after = Grouped::new(
            ids.len(),
            places.iter().map(|&(first, end, relation)| (first, Edge { end, relation })),
        );
        let before = Grouped::new(
            ids.len(),
            places.iter().map(|&(end, then, relation)| (then, Edge { end, relation })),
        );
        let (rings, ring_of) = components(count, &after, |edge| edge.end);
        let rings = rings as usize;
        let members = Grouped::new(rings, ring_of.iter().copied().zip(0..count));
        let mut order = Self {
            after,
            before,
            members,
            status: vec![Status::Open; ids.len()],
            open: vec![0; rings],
            holds: vec![0; rings],
            key_holds: vec![0; ids.len()],
            open_members: BTreeSet::new(),
            ready_of: vec![None; rings],
            ready: BTreeSet::new(),
            ring_of,
            ids,
        };
        order.start(&places);
        order
    }

    /// The inverse of `id` is completed, or its step discarded: it holds nothing back any longer.
    pub fn finish(&mut self, id: u64) {
        let Some(place) = self.place(id) else { return };
        let was = self.set_status(place, Status::Finished);
        let ring = self.ring(place);
        if was == Status::Waived && self.open[ring as usize] == 0 {
            self.hold_on_keys(place, |count| *count -= 1);
        }
        self.refresh(ring);
    }

    /// The inverse of `id` failed, and the policy is to continue: it holds back only what it
    /// precedes on a key. No effect on what is finished.
    pub fn waive(&mut self, id: u64) {
        let Some(place) = self.place(id) else { return };
        if self.status[place as usize] != Status::Finished {
            self.set_status(place, Status::Waived);
            self.refresh(self.ring(place));
        }
    }

    /// The inverse of `id`, finished or waived, is due again: it holds back again what comes after
    /// it, as far as that is not finished.
    pub fn reopen(&mut self, id: u64) {
        let Some(place) = self.place(id) else { return };
        let ring = self.ring(place);
        if self.open[ring as usize] == 0 {
            for member in self.members.of(ring).to_vec() {
                if self.status[member as usize] == Status::Waived {
                    self.hold_on_keys(member, |count| *count -= 1);
                }
                self.hold(member);
            }
        }
        self.set_status(place, Status::Open);
        self.refresh(ring);
    }

    /// Whether the inverse of `id` may start: it is neither finished nor waived, and nothing holds
    /// it back.
    pub fn is_ready(&self, id: u64) -> bool {
        self.place(id).is_some_and(|place| self.ready.contains(&place))
    }

    /// Whether `id` is finished.
    pub fn is_finished(&self, id: u64) -> bool {
        self.place(id).is_some_and(|place| self.status[place as usize] == Status::Finished)
    }

    /// The ids whose inverses may start, highest first.
    pub fn ready(&self) -> Ready<'_> {
        Ready { ids: &self.ids, places: self.ready.iter() }
    }

    /// What holds the inverse of `id` back directly, ascending: for an edge from a ring, all open
    /// members of that ring. Empty for what is ready or finished. The cost is linear in the edges
    /// into the ring of `id`, and in the rings that they come from.
    pub fn waits_for(&self, id: u64) -> Vec<u64> {
        let Some(place) = self.place(id) else { return Vec::new() };
        if self.status[place as usize] == Status::Finished {
            return Vec::new();
        }
        let ring = self.ring(place);
        let mut rings = BTreeSet::new();
        let mut holding = BTreeSet::new();
        for &member in self.members.of(ring) {
            for edge in self.before.of(member) {
                let other = self.ring(edge.end);
                let on_key = edge.relation == Relation::KeyOrder;
                if other == ring {
                    let counts = on_key && member == place && edge.end > place;
                    if counts && self.status[edge.end as usize] == Status::Waived {
                        holding.insert(edge.end);
                    }
                    continue;
                }
                let counts = on_key && member == place;
                if counts && self.status[edge.end as usize] == Status::Waived {
                    holding.insert(edge.end);
                }
                rings.insert(other);
            }
            if member > place && self.status[member as usize] == Status::Open {
                holding.insert(member);
            }
        }
        for &other in &rings {
            let members = self.members.of(other).iter().copied();
            holding.extend(members.filter(|&member| self.status[member as usize] == Status::Open));
        }
        holding.into_iter().map(|place| self.ids[place as usize]).collect()
    }

    fn start(&mut self, edges: &[(u32, u32, Relation)]) {
        for &(first, then, _) in edges {
            let (from, to) = (self.ring(first), self.ring(then));
            if from != to {
                self.holds[to as usize] += 1;
            }
        }
        for (place, &ring) in (0..).zip(&self.ring_of) {
            self.open[ring as usize] += 1;
            if self.members.of(ring).len() > 1 {
                self.open_members.insert((ring, place));
            }
        }
        for ring in (0..).take(self.open.len()) {
            self.refresh(ring);
        }
    }

    fn place(&self, id: u64) -> Option<u32> {
        self.ids.binary_search(&id).ok().and_then(|place| u32::try_from(place).ok())
    }

    fn ring(&self, place: u32) -> u32 {
        self.ring_of[place as usize]
    }

    /// Changes the status of a node, with all counts inside of its ring and, when the ring has no
    /// open member left, those of the rings after it. Answers the status before.
    fn set_status(&mut self, place: u32, status: Status) -> Status {
        let was = std::mem::replace(&mut self.status[place as usize], status);
        let ring = self.ring(place);
        let in_ring = self.members.of(ring).len() > 1;
        if was == status {
            return was;
        }
        if in_ring && was == Status::Waived {
            self.count_key_holds(place, |count| *count -= 1);
        }
        if in_ring && status == Status::Waived {
            self.count_key_holds(place, |count| *count += 1);
        }
        if status == Status::Open {
            self.open[ring as usize] += 1;
            if in_ring {
                self.open_members.insert((ring, place));
            }
        }
        if was == Status::Open {
            self.open[ring as usize] -= 1;
            if in_ring {
                self.open_members.remove(&(ring, place));
            }
            if self.open[ring as usize] == 0 {
                for member in self.members.of(ring).to_vec() {
                    if self.status[member as usize] == Status::Waived {
                        self.hold_on_keys(member, |count| *count += 1);
                    }
                    self.release(member);
                }
            }
        }
        was
    }

    fn count_key_holds(&mut self, place: u32, change: impl Fn(&mut u32)) {
        let ring = self.ring(place);
        for edge in self.after.of(place) {
            let below = self.ring_of[edge.end as usize] == ring && edge.end < place;
            if below && edge.relation == Relation::KeyOrder {
                change(&mut self.key_holds[edge.end as usize]);
            }
        }
    }

    /// The edges out of `place` hold the rings at their ends back no longer.
    fn release(&mut self, place: u32) {
        self.for_outer_edges(place, |order, edge| {
            order.holds[order.ring_of[edge.end as usize] as usize] -= 1;
        });
    }

    /// The edges out of `place` hold the rings at their ends back from now on.
    fn hold(&mut self, place: u32) {
        self.for_outer_edges(place, |order, edge| {
            order.holds[order.ring_of[edge.end as usize] as usize] += 1;
        });
    }

    /// Changes by how many waived nodes of other rings those that `place` precedes on a key are held.
    fn hold_on_keys(&mut self, place: u32, change: impl Fn(&mut u32)) {
        self.for_outer_edges(place, |order, edge| {
            if edge.relation == Relation::KeyOrder {
                change(&mut order.key_holds[edge.end as usize]);
            }
        });
    }

    /// Changes a count for each edge that leaves the ring of `place`, and finds anew what is ready
    /// at their ends.
    fn for_outer_edges(&mut self, place: u32, change: impl Fn(&mut Self, &Edge)) {
        let ring = self.ring(place);
        let mut touched = BTreeSet::new();
        for edge in self.after.of(place).to_vec() {
            let other = self.ring_of[edge.end as usize];
            if other != ring {
                change(self, &edge);
                touched.insert(other);
            }
        }
        for other in touched {
            self.refresh(other);
        }
    }

    /// Finds anew which member of `ring` is ready, if any.
    fn refresh(&mut self, ring: u32) {
        let members = self.members.of(ring);
        let next = if let [only] = members {
            Some(*only).filter(|&only| self.status[only as usize] == Status::Open)
        } else {
            let open = self.open_members.range((ring, 0)..=(ring, u32::MAX));
            open.last().map(|&(_, member)| member)
        };
        let free = self.holds[ring as usize] == 0;
        let next = next.filter(|&next| free && self.key_holds[next as usize] == 0);
        let before = std::mem::replace(&mut self.ready_of[ring as usize], next);
        if before != next {
            if let Some(before) = before {
                self.ready.remove(&before);
            }
            if let Some(next) = next {
                self.ready.insert(next);
            }
        }
    }
}

/// The ids whose inverses may start, highest first; made by [`UndoOrder::ready`].
#[derive(Debug, Clone)]
pub struct Ready<'a> {
    ids: &'a [u64],
    places: std::collections::btree_set::Iter<'a, u32>,
}

impl Iterator for Ready<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.places.next_back().map(|&place| self.ids[place as usize])
    }
}

/// Place of an id among sorted ids, in constant time where ids are spread evenly (as those of one
/// rollback mostly are) and in logarithmic time at worst. Used while the edges are read.
struct Index<'a> {
    ids: &'a [u64],
    base: u64,
    shift: u32,
    /// Where each bucket of ids begins; one more than there are buckets.
    starts: Vec<u32>,
}

impl<'a> Index<'a> {
    fn new(ids: &'a [u64]) -> Self {
        let base = ids.first().copied().unwrap_or(0);
        let span = ids.last().copied().unwrap_or(0) - base;
        let mut shift = 0;
        while span >> shift > 2 * ids.len() as u64 {
            shift += 1;
        }
        let mut starts = Vec::new();
        for (place, id) in (0u32..).zip(ids) {
            let bucket = usize::try_from((id - base) >> shift).unwrap_or(usize::MAX);
            if starts.len() <= bucket {
                starts.resize(bucket + 1, place);
            }
        }
        starts.push(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        Self { ids, base, shift, starts }
    }

    fn place(&self, id: u64) -> Option<u32> {
        let bucket = usize::try_from(id.checked_sub(self.base)? >> self.shift).ok()?;
        let start = *self.starts.get(bucket)?;
        let end = *self.starts.get(bucket + 1)?;
        let within = self.ids[start as usize..end as usize].binary_search(&id).ok()?;
        u32::try_from(start as usize + within).ok()
    }
}
