//! What the reference model remembers, and the graph questions it answers by walking everything
//! anew each time. Nothing is ever removed: settled effects stay beside live ones.

use std::collections::{BTreeMap, BTreeSet};

/// Effects, fences, rollbacks: one sequence of numbers, the model's own.
pub type Id = u64;
/// A branch by the order of its creation; the store knows it as `b<number>`.
pub type Name = usize;
/// A key is one letter.
pub type Key = char;
pub type Ids = BTreeSet<Id>;
/// A vote: of a branch, or (`None`) of the merge authority.
pub type Voter = Option<Name>;
pub type Votes = BTreeMap<Id, BTreeSet<Voter>>;

/// A rule said no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: &'static str,
    pub index: Option<usize>,
}

pub type Ruling<T> = Result<T, Refused>;

pub fn refuse<T>(code: &'static str) -> Ruling<T> {
    Err(Refused { code, index: None })
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    pub max_attempts: u32,
    pub delay_ms: u64,
    pub max_delay_ms: u64,
}

impl Retry {
    /// From the n-th counted failure to the next attempt; the factor is 2, and there is no jitter.
    pub fn wait_ms(&self, failures: u32) -> u64 {
        self.max_delay_ms.min(self.delay_ms << (failures - 1))
    }
}

/// The undo of an effect as far as the rules look at it.
#[derive(Clone, Debug)]
pub struct Inverse {
    pub deadline_ms: Option<u64>,
    pub compare_and_set: bool,
    pub anyone: bool,
    pub partial: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Policy {
    pub require_inverse: bool,
    pub auto_keys: usize,
    pub reserved: bool,
    pub go_on: bool,
    pub retry: Retry,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    pub live_effects: Option<usize>,
    pub live_writers_per_key: Option<usize>,
    pub closure: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Speculative,
    Sealed,
    Committed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saw {
    Plain,
    Version,
    Held,
    Lookup,
    Inherited,
}

/// One observation of a branch; `rule` and `error` say what a held one waits for.
#[derive(Clone, Debug)]
pub struct Seen {
    pub kind: Saw,
    pub key: Option<Key>,
    pub writers: Ids,
    pub position: u64,
    pub rule: Rule,
    pub error: &'static str,
}

impl Seen {
    pub fn new(kind: Saw, key: Option<Key>, writers: Ids, position: u64) -> Self {
        Seen { kind, key, writers, position, rule: Rule::Speculative, error: "uncommitted_key" }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchIs {
    Open,
    Doomed,
    Merged,
    Aborted,
}

#[derive(Clone, Debug)]
pub struct Branch {
    pub name: Name,
    pub agent: &'static str,
    pub parent: Option<Name>,
    pub rule: Rule,
    pub depend: bool,
    pub token: u64,
    pub lease_ms: Option<u64>,
    pub lease_until_ms: Option<u64>,
    pub state: BranchIs,
    pub handed: Ids,
    pub seen: Vec<Seen>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Due,
    Claimed,
    Completed,
    Resolved,
    Failed(&'static str),
    Discarded,
}

/// Progress of one effect's inverse.
#[derive(Clone, Debug)]
pub struct Undo {
    pub status: Status,
    pub generation: u32,
    pub attempt: u32,
    pub failures: u32,
    pub begun: u32,
    pub not_before_ms: u64,
    pub token: Option<u64>,
    pub lease_until_ms: u64,
    pub finished: u64,
    pub evidence_pending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Live,
    Committed,
    Doomed,
    Void,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Unknown,
    Done,
    NotRun,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Full,
    Partial,
    Irreversible,
}

/// One tool call, with everything that ever happened to it.
#[derive(Clone, Debug)]
pub struct Effect {
    pub id: Id,
    pub branch: Name,
    pub tool: u8,
    pub args: u8,
    pub reads: Vec<(Key, Option<Id>)>,
    pub writes: BTreeSet<Key>,
    pub deferred: bool,
    pub class: Class,
    pub inverse: Option<Inverse>,
    pub name: Option<u8>,
    pub token: u64,
    pub registered: u64,
    /// What it rests on; true where it named the version.
    pub deps: BTreeMap<Id, bool>,
    pub state: Life,
    pub outcome: Known,
    pub votes: BTreeSet<Voter>,
    pub settled: Option<u64>,
    pub sealed_then: Option<bool>,
    pub rollback: Option<Id>,
    pub undo: Option<Undo>,
    pub evidence: bool,
    pub was_void: bool,
    pub late: bool,
    pub closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceIs {
    Waiting,
    Committed,
    Aborted,
}

#[derive(Clone, Debug)]
pub struct Fence {
    pub id: Id,
    pub targets: Ids,
    pub status: FenceIs,
    pub committed: Ids,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Automatic,
    Pending,
    Approved,
    Denied,
}

/// One set of doomed effects; `plan` is what the last request was about.
#[derive(Clone, Debug)]
pub struct Rollback {
    pub id: Id,
    pub members: Ids,
    pub gate: Gate,
    pub plan: Ids,
    pub reason_required: bool,
}

/// Doomed time of one writer of a key: from, until.
type Span = (Key, Id, Option<u64>);

pub struct Model {
    pub policy: Policy,
    pub limits: Limits,
    pub now_ms: u64,
    pub position: u64,
    pub last_id: Id,
    pub last_token: u64,
    pub branches: BTreeMap<Name, Branch>,
    pub effects: BTreeMap<Id, Effect>,
    pub fences: BTreeMap<Id, Fence>,
    pub rollbacks: BTreeMap<Id, Rollback>,
    pub names: BTreeMap<u8, Id>,
    spans: Vec<Span>,
    /// Position, effect and generation of every attempt.
    pub starts: Vec<(u64, Id, u32)>,
}

/// Graph and keys.
impl Model {
    pub fn new(policy: Policy, limits: Limits) -> Self {
        Model {
            policy,
            limits,
            now_ms: 0,
            position: 0,
            last_id: 0,
            last_token: 0,
            branches: BTreeMap::new(),
            effects: BTreeMap::new(),
            fences: BTreeMap::new(),
            rollbacks: BTreeMap::new(),
            names: BTreeMap::new(),
            spans: Vec::new(),
            starts: Vec::new(),
        }
    }

    pub fn new_id(&mut self) -> Id {
        self.last_id += 1;
        self.last_id
    }

    /// Tokens rise strictly (I9).
    pub fn new_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    pub fn state(&self, effect: Id) -> Life {
        self.effects[&effect].state
    }

    pub fn get(&mut self, effect: Id) -> &mut Effect {
        self.effects.get_mut(&effect).expect("an effect of the model")
    }

    pub fn line(&mut self, branch: Name) -> &mut Branch {
        self.branches.get_mut(&branch).expect("a branch of the model")
    }

    /// What the effect rests on directly; a void one is replaced by what it rested on (I1).
    pub fn direct(&self, effect: Id) -> Ids {
        let mut found = Ids::new();
        let mut passed = Ids::new();
        let mut todo: Vec<Id> = self.effects[&effect].deps.keys().copied().collect();
        while let Some(dependency) = todo.pop() {
            let void = self.state(dependency) == Life::Void;
            if !void {
                found.insert(dependency);
            }
            // What was inherited stays so when evidence comes that the void one ran after all.
            if (void || self.effects[&dependency].was_void) && passed.insert(dependency) {
                todo.extend(self.effects[&dependency].deps.keys());
            }
        }
        found.remove(&effect);
        found
    }

    /// The ids with void ones replaced by what they rested on, which stays when one of these ran
    /// after all.
    pub fn expand<'a>(&self, ids: impl IntoIterator<Item = &'a Id>) -> Ids {
        let mut found = Ids::new();
        for id in ids {
            let void = self.state(*id) == Life::Void;
            if void || self.effects[id].was_void {
                found.extend(self.direct(*id));
            }
            if !void {
                found.insert(*id);
            }
        }
        found
    }

    /// All that the effect rests on, not looking beyond what is committed; itself left out.
    pub fn reach(&self, effect: Id) -> Ids {
        let mut found = Ids::new();
        let mut todo = vec![effect];
        while let Some(next) = todo.pop() {
            for dependency in self.direct(next) {
                if found.insert(dependency) && self.state(dependency) != Life::Committed {
                    todo.push(dependency);
                }
            }
        }
        found.remove(&effect);
        found
    }

    /// The live ancestors, without the effect itself.
    pub fn closure(&self, effect: Id) -> Ids {
        self.reach(effect).into_iter().filter(|e| self.state(*e) == Life::Live).collect()
    }

    pub fn live(&self) -> Vec<Id> {
        self.effects.values().filter(|e| e.state == Life::Live).map(|e| e.id).collect()
    }

    /// The live effects that rest on one of the roots; roots left out.
    pub fn cascade(&self, roots: &Ids) -> Ids {
        let rests = |e: &Id| !roots.contains(e) && !self.reach(*e).is_disjoint(roots);
        self.live().into_iter().filter(rests).collect()
    }

    /// The branch and those above it, nearest first.
    pub fn above(&self, name: Name) -> Vec<Name> {
        let mut chain = Vec::new();
        let mut next = Some(name);
        while let Some(name) = next {
            chain.push(name);
            next = self.branches[&name].parent;
        }
        chain
    }

    /// The branch and those below it, in order of creation.
    pub fn below(&self, name: Name) -> Vec<Name> {
        self.branches.keys().copied().filter(|b| self.above(*b).contains(&name)).collect()
    }

    pub fn own(&self, name: Name) -> Vec<Id> {
        self.effects.values().filter(|e| e.branch == name).map(|e| e.id).collect()
    }

    pub fn own_live(&self, name: Name) -> Vec<Id> {
        self.own(name).into_iter().filter(|e| self.state(*e) == Life::Live).collect()
    }

    /// The live eager effects of the branch that no other of them rests on; of a ring the newest (C16).
    pub fn tip(&self, name: Name) -> Ids {
        let handed = &self.branches[&name].handed;
        let held = handed.iter().copied().filter(|e| self.state(*e) == Life::Live);
        let members: Ids =
            held.chain(self.own_live(name)).filter(|e| !self.effects[e].deferred).collect();
        let reach: BTreeMap<Id, Ids> = members.iter().map(|e| (*e, self.closure(*e))).collect();
        let covered = |old: &Id| {
            members.iter().any(|new| {
                new != old && reach[new].contains(old) && (!reach[old].contains(new) || new > old)
            })
        };
        members.iter().copied().filter(|e| !covered(e)).collect()
    }

    /// Every writer that the branch has observed, void ones replaced as well as kept.
    pub fn observed(&self, name: Name) -> Ids {
        let raw: Ids = self.branches[&name].seen.iter().flat_map(|s| s.writers.clone()).collect();
        let expanded = self.expand(&raw);
        raw.union(&expanded).copied().collect()
    }

    /// Whether the vote counts: every branch from the owner up, or the authority (C33, C44).
    pub fn counts(&self, effect: Id, extra: Option<&Votes>) -> bool {
        let record = &self.effects[&effect];
        let more = extra.and_then(|extra| extra.get(&effect));
        let has = |voter: &Voter| {
            record.votes.contains(voter) || more.is_some_and(|more| more.contains(voter))
        };
        has(&None) || self.above(record.branch).into_iter().all(|b| has(&Some(b)))
    }

    /// Whether the effect counts as a writer of the key at all (C12).
    pub fn wrote(&self, effect: Id, key: Key) -> bool {
        let record = &self.effects[&effect];
        record.writes.contains(&key) && !record.deferred
    }

    pub fn live_writers(&self, key: Key) -> Ids {
        self.live().into_iter().filter(|e| self.wrote(*e, key)).collect()
    }

    /// Whether a doomed effect has an inverse that matters.
    pub fn may_have_run(&self, effect: Id) -> bool {
        self.effects[&effect].undo.as_ref().is_some_and(|u| u.status != Status::Discarded)
    }

    pub fn settled_outcome(&self, effect: Id) -> bool {
        self.effects[&effect].outcome != Known::Unknown || self.effects[&effect].closed
    }

    /// The doomed writers whose value the world may still show (C58).
    pub fn dirty(&self, key: Key) -> Ids {
        let shows = |e: &&Effect| {
            let Some(undo) = &e.undo else { return false };
            let over = matches!(undo.status, Status::Completed | Status::Resolved);
            self.wrote(e.id, key)
                && undo.status != Status::Discarded
                && !(over && self.settled_outcome(e.id))
        };
        self.effects.values().filter(shows).map(|e| e.id).collect()
    }

    /// The writers for which the key was dirty at any moment after the position, or is.
    pub fn dirty_since(&self, key: Key, position: u64) -> Ids {
        let mut found = self.dirty(key);
        for (of, writer, end) in &self.spans {
            if *of == key && end.is_none_or(|end| end > position) {
                found.insert(*writer);
            }
        }
        found
    }

    /// Brings the spans of dirtiness up to the end of this step.
    pub fn note_dirty(&mut self) {
        let keys: BTreeSet<Key> =
            self.effects.values().flat_map(|e| e.writes.iter().copied()).collect();
        let mut current: BTreeSet<(Key, Id)> = BTreeSet::new();
        for key in keys {
            current.extend(self.dirty(key).into_iter().map(|writer| (key, writer)));
        }
        for (key, writer, end) in &mut self.spans {
            if end.is_none() && !current.remove(&(*key, *writer)) {
                *end = Some(self.position);
            }
        }
        self.spans.extend(current.into_iter().map(|(key, writer)| (key, writer, None)));
    }

    /// The writers of the key that were live at any moment after the position.
    pub fn writers_since(&self, key: Key, position: u64) -> Ids {
        let then = |e: &&Effect| {
            self.wrote(e.id, key) && e.settled.is_none_or(|settled| settled > position)
        };
        self.effects.values().filter(then).map(|e| e.id).collect()
    }
}
