//! Who came to rest on whom, as the log tells it from a record on. A governed rollback follows it.
//!
//! The graph in memory holds live effects alone. Here settled ones count, too, so the edges are found
//! anew: from what was named (`after`, versions), and from the keys that were read, whose writers were
//! committed perhaps before the read, so that no edge was recorded then. A reader rests on every
//! writer whose value it may have seen; when in doubt, there is an edge.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ruling, Turn};
use crate::model::{After, BranchId, EffectId, Event, Follows, Key, Mode, Observation, Registered};

/// Numbers of nodes that stand for what a branch has seen or done so far.
const FIRST_NODE: u64 = 1 << 63;

/// One write of a key.
struct Write {
    effect: u64,
    /// The record that reported it as done; none while it is in flight.
    done_at: Option<u64>,
    /// It is doomed or void, so it hides no earlier value for good.
    gone: bool,
}

#[derive(Default)]
struct KeyTrail {
    /// In the order of the writes.
    writes: Vec<Write>,
    /// Calls that read the key and have not reported.
    open: BTreeSet<u64>,
}

#[derive(Clone, Default)]
struct BranchTrail {
    /// The node of all that it has observed.
    seen: Option<u64>,
    /// The node of all its calls so far.
    calls: Option<u64>,
    /// The turn under way, and the node of the calls before it.
    turn: Option<(Vec<EffectId>, Option<u64>)>,
}

/// What the log tells of dependencies, from a record on.
#[derive(Default)]
pub(super) struct Trail {
    program_order: bool,
    next: u64,
    /// By node, what it rests on.
    below: BTreeMap<u64, BTreeSet<u64>>,
    keys: BTreeMap<Key, KeyTrail>,
    branches: BTreeMap<BranchId, BranchTrail>,
    calls: BTreeMap<u64, Registered>,
}

impl Trail {
    fn new(program_order: bool) -> Self {
        Trail { program_order, next: FIRST_NODE, ..Trail::default() }
    }

    fn rest(&mut self, node: u64, on: impl IntoIterator<Item = u64>) {
        let known = self.below.entry(node).or_default();
        known.extend(on.into_iter().filter(|on| *on != node));
    }

    fn node(&mut self, on: impl IntoIterator<Item = u64>) -> u64 {
        let node = self.next;
        self.next += 1;
        self.rest(node, on);
        node
    }

    /// The writers whose value a reader may have seen at any moment since a record: the newest that
    /// was there by then, and all that came later.
    fn visible(&self, key: &Key, since: u64) -> Vec<u64> {
        let mut seen = Vec::new();
        for write in self.keys.get(key).map_or(&[][..], |trail| &trail.writes).iter().rev() {
            seen.push(write.effect);
            if !write.gone && write.done_at.is_some_and(|done| done <= since) {
                break;
            }
        }
        seen
    }

    fn hear(&mut self, seq: u64, event: &Event) {
        match event {
            Event::BranchCreated { parent: Some(parent), inherited, .. } => {
                let above = self.branches.get(parent).cloned().unwrap_or_default();
                let mut own = BranchTrail { turn: None, ..above };
                let handed = inherited.iter().flat_map(|known| known.observed.iter());
                let handed: Vec<u64> = handed.map(|id| id.0).collect();
                if !handed.is_empty() {
                    own.seen = Some(self.node(handed.into_iter().chain(own.seen)));
                }
                self.branches.insert(BranchId(seq), own);
            }
            Event::Registered(registered) => self.registered(seq, registered),
            Event::Observed { branch, observations } => self.observed(*branch, observations),
            Event::ObservationRefused { branch, key, writers, .. } => {
                let mut seen = self.visible(key, seq);
                seen.extend(writers.iter().map(|id| id.0));
                self.saw(*branch, seen);
            }
            Event::ObservedLate { effect, observations, rests_on } => {
                self.rest(effect.0, rests_on.iter().map(|id| id.0));
                for observation in observations {
                    let seen = self.seen_by(observation, effect.0);
                    self.rest(effect.0, seen);
                }
            }
            Event::Done { effect, rests_on, .. } => {
                self.rest(effect.0, rests_on.iter().map(|id| id.0));
                self.end_call(effect.0, seq, false);
            }
            Event::NotRun { effect, observed, .. } => {
                self.rest(effect.0, observed.iter().map(|id| id.0));
                self.end_call(effect.0, seq, true);
                if let Some(branch) = self.calls.get(&effect.0).map(|call| call.branch) {
                    self.saw(branch, [effect.0]);
                }
            }
            Event::Delivered { effect, rests_on, .. } => {
                self.rest(effect.0, rests_on.iter().map(|id| id.0));
                self.begin_call(effect.0, seq);
            }
            Event::Fenced { members, .. } => {
                for id in members.iter() {
                    if let Some(call) = self.calls.get(&id.0)
                        && let Some(branch) = self.branches.get_mut(&call.branch)
                    {
                        branch.turn = None;
                    }
                }
            }
            Event::Doomed(doom) => {
                for id in doom.members.iter() {
                    self.gone(id.0);
                }
            }
            _ => {}
        }
    }

    fn seen_by(&self, observation: &Observation, since: u64) -> Vec<u64> {
        let mut seen: Vec<u64> = observation.writers.iter().map(|id| id.0).collect();
        match observation.version {
            Some(version) => seen.push(version),
            None => seen.extend(self.visible(&observation.key, since)),
        }
        seen
    }

    fn observed(&mut self, branch: BranchId, observations: &[Observation]) {
        let seen: Vec<u64> = observations
            .iter()
            .flat_map(|observation| self.seen_by(observation, observation.at))
            .collect();
        self.saw(branch, seen);
    }

    /// From now on every call of the branch rests on these.
    fn saw(&mut self, branch: BranchId, seen: impl IntoIterator<Item = u64>) {
        let mut seen = seen.into_iter().peekable();
        if seen.peek().is_none() {
            return;
        }
        let before = self.branches.get(&branch).and_then(|known| known.seen);
        let node = self.node(seen.chain(before).collect::<Vec<_>>());
        self.branches.entry(branch).or_default().seen = Some(node);
    }

    fn registered(&mut self, seq: u64, registered: &Registered) {
        self.observed(registered.branch, &registered.observed);
        let call = &registered.call;
        let known = self.branches.entry(registered.branch).or_default();
        let mut on: Vec<u64> = known.seen.into_iter().collect();
        // What it follows and did not look at counts where program order does.
        let looked = registered.rests_on.iter();
        on.extend(looked.filter(|id| registered.program.binary_search(id).is_err()).map(|id| id.0));
        let before = match &call.follows {
            Follows::These(named) => {
                on.extend(named.iter().filter_map(|after| match after {
                    After::Effect(effect) => Some(effect.0),
                    After::Item(_) => None, // The record names effects.
                }));
                None
            }
            Follows::Tip => {
                known.turn = None;
                known.calls
            }
            Follows::Turn(turn) => match &known.turn {
                Some((same, before)) if same == turn => *before,
                _ => {
                    known.turn = Some((turn.clone(), known.calls));
                    known.calls
                }
            },
        };
        if self.program_order {
            on.extend(registered.program.iter().map(|id| id.0).chain(before));
        }
        on.extend(call.reads.iter().filter_map(|read| read.version));
        self.rest(seq, on);
        let so_far = self.branches.get(&registered.branch).and_then(|known| known.calls);
        let node = self.node([seq].into_iter().chain(so_far));
        if let Some(known) = self.branches.get_mut(&registered.branch) {
            known.calls = Some(node);
        }
        self.calls.insert(seq, registered.clone());
        if registered.mode == Mode::Eager {
            self.begin_call(seq, seq);
        }
    }

    /// A call begins: it reads and writes from here on.
    fn begin_call(&mut self, id: u64, seq: u64) {
        let Some(registered) = self.calls.get(&id) else { return };
        let (reads, writes) = (registered.call.reads.clone(), registered.call.writes.clone());
        for read in &reads {
            if let Some(version) = read.version {
                self.rest(id, [version]);
            } else {
                let seen = self.visible(&read.key, seq);
                self.rest(id, seen);
                self.keys.entry(read.key.clone()).or_default().open.insert(id);
            }
        }
        for key in &writes {
            let trail = self.keys.entry(key.clone()).or_default();
            if trail.writes.iter().any(|write| write.effect == id) {
                continue;
            }
            trail.writes.push(Write { effect: id, done_at: None, gone: false });
            let readers: Vec<u64> = trail.open.iter().copied().collect();
            for reader in readers {
                self.rest(reader, [id]);
            }
        }
    }

    fn end_call(&mut self, id: u64, seq: u64, void: bool) {
        let Some(registered) = self.calls.get(&id) else { return };
        let (reads, writes) = (registered.call.reads.clone(), registered.call.writes.clone());
        for read in &reads {
            if let Some(trail) = self.keys.get_mut(&read.key) {
                trail.open.remove(&id);
            }
        }
        for key in &writes {
            let writes = self.keys.get_mut(key).map(|trail| &mut trail.writes);
            for write in writes.into_iter().flatten().filter(|write| write.effect == id) {
                write.done_at = Some(seq);
                write.gone |= void;
            }
        }
    }

    fn gone(&mut self, id: u64) {
        let Some(registered) = self.calls.get(&id) else { return };
        let keys: Vec<Key> = registered.call.writes.clone();
        let reads: Vec<Key> = registered.call.reads.iter().map(|read| read.key.clone()).collect();
        for key in reads {
            if let Some(trail) = self.keys.get_mut(&key) {
                trail.open.remove(&id);
            }
        }
        for key in keys {
            let writes = self.keys.get_mut(&key).map(|trail| &mut trail.writes);
            for write in writes.into_iter().flatten().filter(|write| write.effect == id) {
                write.gone = true;
            }
        }
    }

    /// A merged child hands on what it has seen and done.
    fn merged(&mut self, child: BranchId, parent: BranchId) {
        let Some(handed) = self.branches.get(&child).cloned() else { return };
        if let Some(seen) = handed.seen {
            self.saw(parent, [seen]);
        }
        let above = self.branches.get(&parent).and_then(|known| known.calls);
        if let Some(calls) = handed.calls {
            let node = self.node([calls].into_iter().chain(above));
            self.branches.entry(parent).or_default().calls = Some(node);
        }
    }

    /// A call that began before the trail does: what it reads and writes may concern newer ones.
    fn take_up(&mut self, id: u64, registered: Registered) {
        let running: Vec<Key> = registered
            .call
            .reads
            .iter()
            .filter(|read| read.version.is_none())
            .map(|read| read.key.clone())
            .collect();
        let eager = registered.mode == Mode::Eager;
        self.calls.insert(id, registered);
        if !eager {
            return; // It begins when it is handed out.
        }
        for key in running {
            let seen = self.visible(&key, id);
            self.rest(id, seen);
            self.keys.entry(key).or_default().open.insert(id);
        }
    }

    /// These and all that rests on them, effects only.
    pub(super) fn descendants(&self, targets: &[EffectId]) -> BTreeSet<EffectId> {
        let mut above: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (node, below) in &self.below {
            for on in below {
                above.entry(*on).or_default().push(*node);
            }
        }
        let mut found: BTreeSet<u64> = targets.iter().map(|id| id.0).collect();
        let mut open: Vec<u64> = found.iter().copied().collect();
        while let Some(node) = open.pop() {
            let next = above.get(&node).into_iter().flatten();
            open.extend(next.copied().filter(|node| found.insert(*node)));
        }
        found.into_iter().filter(|node| *node < FIRST_NODE).map(EffectId).collect()
    }

    /// Branches that have seen one of these, with the one that they saw.
    pub(super) fn readers(&self, members: &BTreeSet<EffectId>) -> Vec<(BranchId, EffectId)> {
        let mut found = Vec::new();
        for (branch, trail) in &self.branches {
            let Some(seen) = trail.seen else { continue };
            let first = self.members_under(seen, members).into_iter().next();
            found.extend(first.map(|member| (*branch, member)));
        }
        found
    }

    /// The members that a node rests on directly, or through what is no member.
    pub(super) fn members_under(
        &self,
        node: u64,
        members: &BTreeSet<EffectId>,
    ) -> BTreeSet<EffectId> {
        let mut found = BTreeSet::new();
        let mut passed = BTreeSet::new();
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            for on in self.below.get(&node).into_iter().flatten() {
                if members.contains(&EffectId(*on)) {
                    found.insert(EffectId(*on));
                } else if passed.insert(*on) {
                    open.push(*on);
                }
            }
        }
        found.remove(&EffectId(node));
        found
    }
}

impl Turn<'_> {
    /// Reads the log forward from the oldest target. The cost is that of the log since then, paid by
    /// whoever asks for a governed rollback or answers for it.
    pub(super) fn trail(&self, from: EffectId, program_order: bool) -> Ruling<Trail> {
        let mut trail = Trail::new(program_order);
        // Calls that were under way when the oldest target registered may have seen newer ones.
        for id in self.state.running.range(..from) {
            if let Some(Event::Registered(registered)) = self.history.event(id.0)? {
                trail.take_up(id.0, *registered);
            }
        }
        let mut older: BTreeSet<u64> = BTreeSet::new();
        self.history.scan(from.0, &mut |_, event| {
            match event {
                Event::Done { effect, .. }
                | Event::NotRun { effect, .. }
                | Event::ObservedLate { effect, .. }
                | Event::Delivered { effect, .. }
                    if *effect < from =>
                {
                    older.insert(effect.0);
                }
                _ => {}
            }
            true
        })?;
        for id in &older {
            if !trail.calls.contains_key(id)
                && let Some(Event::Registered(registered)) = self.history.event(*id)?
            {
                trail.take_up(*id, *registered);
            }
        }
        let mut failed = None;
        self.history.scan(from.0, &mut |seq, event| {
            if let Event::BranchMerged { branch } = event {
                match self.history.event(branch.0) {
                    Ok(Some(Event::BranchCreated { parent, .. })) => {
                        if let Some(parent) = parent {
                            trail.merged(*branch, parent);
                        }
                    }
                    Ok(_) => {}
                    Err(error) => {
                        failed = Some(error);
                        return false;
                    }
                }
            }
            trail.hear(seq, event);
            true
        })?;
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(trail),
        }
    }
}
