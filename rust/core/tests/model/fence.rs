//! The fence: votes, decisions, intents that commit by themselves, and the merge authority.

use std::collections::{BTreeMap, BTreeSet};

use super::world::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ref {
    Branch(Name),
    Effect(Id),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Commit,
    Abort,
    Escalate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    NoVote,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub kind: Kind,
    pub closure: Ids,
    pub blockers: BTreeSet<(Id, Why)>,
}

/// What the merge authority's call did.
#[derive(Clone, Debug)]
pub struct Settled {
    pub fence: Option<Fence>,
    pub doomed: Ids,
    pub cascaded: Ids,
    pub kept: Ids,
    pub rollback: Option<Id>,
}

#[derive(Clone, Debug)]
pub struct Sides {
    pub commit: Vec<Ref>,
    pub abort: Vec<Ref>,
    pub closure: bool,
    pub drop_winners: bool,
    pub never: bool,
}

impl Model {
    /// A new position, and everything that fell due before it (C1).
    pub fn begin(&mut self) {
        self.position += 1;
        let names: Vec<Name> = self.branches.keys().copied().collect();
        for name in names {
            let branch = &self.branches[&name];
            let working = matches!(branch.state, BranchIs::Open | BranchIs::Doomed);
            if working && branch.lease_until_ms.is_some_and(|until| self.now_ms >= until) {
                self.expire(name);
            }
        }
        self.expire_steps();
        self.judge_due();
    }

    /// Everything that follows in the same transaction.
    pub fn settle(&mut self) {
        self.settle_intents();
        self.judge_due();
        self.review_plans();
        self.note_dirty();
    }

    /// Past its lease the branch is stopped and its unsealed effects are doomed (C2).
    fn expire(&mut self, name: Name) {
        self.line(name).lease_until_ms = None;
        let unsealed = |e: &Id| {
            let votes = &self.effects[e].votes;
            !votes.contains(&None) && !votes.contains(&Some(name))
        };
        let unsealed: Ids = self.own_live(name).into_iter().filter(unsealed).collect();
        if !unsealed.is_empty() {
            self.doom(&unsealed);
        }
        let branch = self.line(name);
        if branch.state == BranchIs::Open {
            branch.state = BranchIs::Doomed;
        }
    }

    /// What a snapshot shows; settled effects keep what they had.
    pub fn sealed(&self, effect: Id) -> bool {
        self.effects[&effect].sealed_then.unwrap_or_else(|| self.counts(effect, None))
    }

    /// The live effects that a vote of the branch covers: its own and those of the branches below.
    pub fn scope(&self, name: Name) -> Ids {
        self.below(name).into_iter().flat_map(|b| self.own_live(b)).collect()
    }

    pub fn give(&mut self, votes: &Votes) {
        for (effect, voters) in votes {
            self.get(*effect).votes.extend(voters.iter().copied());
        }
    }

    /// The live targets and all live effects that they rest on.
    pub fn members(&self, targets: &Ids) -> Ids {
        let live: Ids = targets.iter().copied().filter(|t| self.state(*t) == Life::Live).collect();
        let rest: Ids = live.iter().flat_map(|t| self.closure(*t)).collect();
        live.union(&rest).copied().collect()
    }

    /// What keeps the targets from being committed now (I11).
    pub fn blockers(&self, targets: &Ids, extra: Option<&Votes>) -> BTreeSet<(Id, Why)> {
        let mut found = BTreeSet::new();
        for effect in self.members(targets) {
            let record = &self.effects[&effect];
            if record.outcome == Known::Unknown && !record.deferred {
                found.insert((effect, Why::Unknown));
            }
            if !self.counts(effect, extra) {
                found.insert((effect, Why::NoVote));
            }
        }
        found
    }

    /// The effects that a commit by the owner asks for, and the votes that it gives.
    fn targets_of(&self, target: Ref) -> (Ids, Votes) {
        let vote = |e: Id, name: Name| (e, BTreeSet::from([Some(name)]));
        match target {
            Ref::Branch(name) => {
                let votes = self.scope(name).into_iter().map(|e| vote(e, name)).collect();
                (self.own_live(name).into_iter().collect(), votes)
            }
            Ref::Effect(id) => {
                let owner = self.effects[&id].branch;
                let scope = self.scope(owner);
                let part = self.members(&Ids::from([id])).into_iter();
                let votes = part.filter(|e| scope.contains(e)).map(|e| vote(e, owner)).collect();
                (Ids::from([id]), votes)
            }
        }
    }

    /// Answers without changing anything (C34 to C36).
    pub fn decide(&self, target: Ref) -> Decision {
        let plain = |kind| Decision { kind, closure: Ids::new(), blockers: BTreeSet::new() };
        match target {
            Ref::Branch(name) => {
                if matches!(self.branches[&name].state, BranchIs::Doomed | BranchIs::Aborted) {
                    return plain(Kind::Abort);
                }
            }
            Ref::Effect(id) => match self.state(id) {
                Life::Doomed | Life::Void => return plain(Kind::Abort),
                Life::Committed => return plain(Kind::Commit),
                Life::Live => {}
            },
        }
        let (targets, votes) = self.targets_of(target);
        let closure: Ids = targets.iter().flat_map(|t| self.closure(*t)).collect();
        let blockers = self.blockers(&targets, Some(&votes));
        let clean = closure.is_empty() && blockers.is_empty();
        let kind = if clean { Kind::Commit } else { Kind::Escalate };
        Decision { kind, closure, blockers }
    }

    /// Decides a waiting intent if it can be decided (C37).
    fn judge_fence(&mut self, id: Id) -> bool {
        let targets = self.fences[&id].targets.clone();
        let states: Vec<Life> = targets.iter().map(|t| self.state(*t)).collect();
        let void = !states.is_empty() && states.iter().all(|s| *s == Life::Void);
        let mut committed = Ids::new();
        let status = if states.contains(&Life::Doomed) || void {
            FenceIs::Aborted
        } else if !states.contains(&Life::Live) {
            FenceIs::Committed
        } else if self.blockers(&targets, None).is_empty() {
            committed = self.members(&targets);
            let position = self.position;
            for effect in &committed {
                let counts = self.counts(*effect, None);
                let record = self.get(*effect);
                record.sealed_then = Some(counts);
                record.state = Life::Committed;
                record.settled = Some(position);
            }
            FenceIs::Committed
        } else {
            FenceIs::Waiting
        };
        let fence = self.fences.get_mut(&id).expect("a fence of the model");
        fence.status = status;
        fence.committed = committed;
        status != FenceIs::Waiting
    }

    /// Commits every intent that has become possible, in order of id.
    fn settle_intents(&mut self) {
        loop {
            let waiting = self.fences.values().filter(|f| f.status == FenceIs::Waiting);
            let waiting: Vec<Id> = waiting.map(|f| f.id).collect();
            if !waiting.into_iter().any(|id| self.judge_fence(id)) {
                return;
            }
        }
    }

    fn ask_fence(&mut self, targets: Ids) -> Fence {
        let id = self.new_id();
        let fence = Fence { id, targets, status: FenceIs::Waiting, committed: Ids::new() };
        self.fences.insert(id, fence);
        self.judge_fence(id);
        self.fences[&id].clone()
    }

    /// Votes for the owner's part and asks, or refuses and leaves nothing behind.
    pub fn commit_votes(&mut self, target: Ref, never: bool) -> Ruling<Fence> {
        let decision = self.decide(target);
        let blocked = never && !decision.blockers.is_empty();
        if decision.kind == Kind::Abort || blocked {
            return refuse("fence_closure");
        }
        let (targets, votes) = self.targets_of(target);
        self.give(&votes);
        Ok(self.ask_fence(targets))
    }

    /// The named live effects, the committed ones that are kept, and the branches to close (C40, C41).
    fn abort_side(&self, refs: &[Ref]) -> (Ids, Ids, Vec<Name>) {
        let (mut named, mut kept, mut closing) = (Ids::new(), Ids::new(), Vec::new());
        for target in refs {
            let members: Vec<Id> = match target {
                Ref::Branch(name) => {
                    let below = self.below(*name);
                    let working = |b: &Name| {
                        matches!(self.branches[b].state, BranchIs::Open | BranchIs::Doomed)
                    };
                    closing.extend(below.iter().copied().filter(working));
                    below.into_iter().flat_map(|b| self.own(b)).collect()
                }
                Ref::Effect(id) => vec![*id],
            };
            for member in members {
                match self.state(member) {
                    Life::Live => named.insert(member),
                    Life::Committed => kept.insert(member),
                    _ => false,
                };
            }
        }
        (named, kept, closing)
    }

    /// The effects that the commit side names; void ones are left out (C42).
    fn commit_side(&self, refs: &[Ref]) -> Ruling<Ids> {
        let mut named = Ids::new();
        for target in refs {
            match *target {
                Ref::Branch(name) => match self.branches[&name].state {
                    BranchIs::Doomed | BranchIs::Aborted => return refuse("fence_closure"),
                    BranchIs::Merged => return refuse("branch_closed"),
                    BranchIs::Open => named.extend(self.own_live(name)),
                },
                Ref::Effect(id) => match self.state(id) {
                    Life::Doomed => return refuse("fence_closure"),
                    Life::Void => {}
                    _ => {
                        named.insert(id);
                    }
                },
            }
        }
        Ok(named)
    }

    /// The authority's votes; other owners' unvoted deferred or irreversible effects are theirs (C44).
    fn authority_votes(&self, named: &Ids, closure: bool) -> Votes {
        let authority = || BTreeSet::from([None]);
        let mut votes: Votes = named.iter().map(|e| (*e, authority())).collect();
        let owners: BTreeSet<Name> = named.iter().map(|e| self.effects[e].branch).collect();
        let rest = if closure { self.members(named) } else { Ids::new() };
        for effect in rest {
            let record = &self.effects[&effect];
            let theirs = record.deferred || record.class == Class::Irreversible;
            if !theirs || owners.contains(&record.branch) || self.counts(effect, None) {
                votes.insert(effect, authority());
            }
        }
        votes
    }

    /// Settles both sides in one step, or refuses with nothing changed (C43, C45).
    pub fn reconcile_sides(&mut self, sides: &Sides) -> Ruling<Settled> {
        for target in sides.commit.iter().chain(&sides.abort) {
            let known = match target {
                Ref::Branch(name) => self.branches.contains_key(name),
                Ref::Effect(id) => self.effects.contains_key(id),
            };
            if !known {
                return refuse("not_found");
            }
        }
        let winners = self.commit_side(&sides.commit)?;
        let (named, kept, closing) = self.abort_side(&sides.abort);
        let mut wins = !sides.commit.is_empty();
        let lost: Ids = named.union(&self.cascade(&named)).copied().collect();
        if !self.members(&winners).is_disjoint(&lost) {
            if !sides.drop_winners {
                return refuse("reconcile_conflict");
            }
            wins = false;
        }
        let votes = self.authority_votes(&winners, sides.closure);
        if wins && sides.never && !self.blockers(&winners, Some(&votes)).is_empty() {
            return refuse("fence_closure");
        }
        let doom = self.doom(&named);
        for name in closing {
            self.line(name).state = BranchIs::Aborted;
        }
        let fence = wins.then(|| {
            self.give(&votes);
            let void = |r: &Ref| match r {
                Ref::Effect(id) if self.state(*id) == Life::Void => Some(*id),
                _ => None,
            };
            let voids: Ids = sides.commit.iter().filter_map(void).collect();
            self.ask_fence(if winners.is_empty() { voids } else { winners })
        });
        let (cascaded, rollback) = (doom.cascaded, doom.rollback);
        Ok(Settled { fence, doomed: named, cascaded, kept, rollback })
    }

    /// Every vote that a branch gives for what it has so far.
    pub fn seal_scope(&mut self, name: Name) {
        let voters = BTreeSet::from([Some(name)]);
        let votes: BTreeMap<Id, _> =
            self.scope(name).into_iter().map(|e| (e, voters.clone())).collect();
        self.give(&votes);
    }
}
