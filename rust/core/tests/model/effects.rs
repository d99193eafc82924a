//! Effects: registration with its refusals, outcomes with their second look, late calls as
//! evidence; and the verbs on steps.

use std::collections::{BTreeMap, BTreeSet};

use super::rollback::{Claimed, Failing};
use super::world::*;

/// What a call follows: an effect, or an earlier item of the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    Effect(Id),
    Item(usize),
}

/// What `register` takes.
#[derive(Clone)]
pub struct Call {
    pub tool: u8,
    pub args: u8,
    pub reads: Vec<(Key, Option<Id>)>,
    pub writes: BTreeSet<Key>,
    pub after: Option<Vec<Behind>>,
    pub inverse: Option<Inverse>,
    pub irreversible: bool,
    pub deferred: bool,
    pub name: Option<u8>,
}

/// One line of a story: what differs from a plain call that reads and writes nothing.
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "r{:?} w{:?}", self.reads, self.writes)?;
        if let Some(after) = &self.after {
            write!(f, " after{after:?}")?;
        }
        if let Some(name) = self.name {
            write!(f, " name {name} ({}, {})", self.tool, self.args)?;
        }
        match &self.inverse {
            None => write!(f, " no inverse")?,
            Some(Inverse { deadline_ms, compare_and_set, anyone, partial }) => {
                for (said, flag) in
                    [("cas", compare_and_set), ("anyone", anyone), ("partial", partial)]
                {
                    if *flag {
                        write!(f, " {said}")?;
                    }
                }
                if let Some(deadline) = deadline_ms {
                    write!(f, " until {deadline}")?;
                }
            }
        }
        for (said, flag) in [("irreversible", self.irreversible), ("deferred", self.deferred)] {
            if flag {
                write!(f, " {said}")?;
            }
        }
        Ok(())
    }
}

/// A call on a branch; `base` is the tip of a parallel turn.
#[derive(Clone, Debug)]
pub struct Item {
    pub branch: Name,
    pub token: u64,
    pub base: Option<Ids>,
    pub call: Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    pub effect: Id,
    pub created: bool,
    pub token: Option<u64>,
}

impl Model {
    /// All or nothing; the items are siblings on the tips as before the call (C14).
    pub fn register(&mut self, items: &[Item]) -> Ruling<Vec<Registered>> {
        self.verb(|model| {
            let tips: BTreeMap<Name, Ids> =
                items.iter().map(|item| (item.branch, model.tip(item.branch))).collect();
            let kept = (model.last_id, model.names.clone(), model.branches.clone());
            let mut answers: Vec<Registered> = Vec::new();
            for (index, item) in items.iter().enumerate() {
                let tip = item.base.as_ref().unwrap_or(&tips[&item.branch]).clone();
                match model.admit(item, &tip, &answers) {
                    Ok(answer) => answers.push(answer),
                    Err(mut refused) => {
                        (model.last_id, model.names, model.branches) = kept;
                        for answer in answers.iter().filter(|answer| answer.created) {
                            model.effects.remove(&answer.effect);
                        }
                        refused.index = (items.len() > 1).then_some(index);
                        return Err(refused);
                    }
                }
            }
            Ok(answers)
        })
    }

    /// Judges one registration in the order of C5 and records it.
    fn admit(&mut self, item: &Item, tip: &Ids, earlier: &[Registered]) -> Ruling<Registered> {
        let name = item.branch;
        self.guard_token(name, item.token)?;
        if let Some(known) = self.known(name, &item.call)? {
            return Ok(known);
        }
        self.guard_open(name)?;
        if self.compensating(name) {
            return refuse("compensation_scope");
        }
        if let Some(seen) = self.branches[&name].seen.iter().find(|s| self.blocking(name, s)) {
            return refuse(seen.error);
        }
        let after: Option<Vec<Id>> = item.call.after.as_ref().map(|after| {
            let id = |behind: &Behind| match behind {
                Behind::Effect(id) => *id,
                Behind::Item(place) => earlier[*place].effect,
            };
            after.iter().map(id).collect()
        });
        let mut effect = self.draft(name, &item.call, after.as_deref())?;
        self.rest(&mut effect, after.as_deref(), tip)?;
        self.check_limits(&effect)?;
        self.last_id = effect.id;
        if let Some(key) = effect.name {
            self.names.insert(key, effect.id);
        }
        self.admit_held(name);
        let answer = Registered { effect: effect.id, created: true, token: Some(effect.token) };
        self.effects.insert(effect.id, effect);
        Ok(answer)
    }

    /// What was held and is admitted by now is an ordinary observation (C20).
    fn admit_held(&mut self, name: Name) {
        let mut seen = std::mem::take(&mut self.line(name).seen);
        for one in seen.iter_mut().filter(|one| one.kind == Saw::Held) {
            one.kind = Saw::Plain;
            one.writers.extend(self.expand(&one.writers));
        }
        self.line(name).seen = seen;
    }

    /// The first effect of a known name; another branch observes it by asking (C10).
    fn known(&mut self, name: Name, call: &Call) -> Ruling<Option<Registered>> {
        let Some(first) = call.name.and_then(|key| self.names.get(&key).copied()) else {
            return Ok(None);
        };
        let record = &self.effects[&first];
        if record.tool != call.tool || record.args != call.args {
            return refuse("idempotency_conflict");
        }
        let mine = record.branch == name;
        let token = mine.then_some(record.token);
        if !mine && record.state == Life::Live {
            let seen = Seen::new(Saw::Lookup, None, Ids::from([first]), self.position);
            self.line(name).seen.push(seen);
        }
        Ok(Some(Registered { effect: first, created: false, token }))
    }

    fn draft(&self, name: Name, call: &Call, after: Option<&[Id]>) -> Ruling<Effect> {
        if call.inverse.is_none() && !call.irreversible && self.policy.require_inverse {
            return refuse("inverse_required");
        }
        let partial = call.inverse.as_ref().is_some_and(|inverse| inverse.partial);
        let class = if call.irreversible {
            Class::Irreversible
        } else if partial {
            Class::Partial
        } else {
            Class::Full
        };
        let behind = |id: &Id| self.effects.get(id).is_some_and(|e| e.deferred);
        let behind = after.unwrap_or_default().iter().any(behind);
        let branch = &self.branches[&name];
        Ok(Effect {
            id: self.last_id + 1,
            branch: name,
            tool: call.tool,
            args: call.args,
            reads: call.reads.clone(),
            writes: call.writes.clone(),
            deferred: call.irreversible || call.deferred || behind,
            class,
            inverse: call.inverse.clone(),
            name: call.name,
            token: branch.token,
            registered: self.position,
            deps: BTreeMap::new(),
            state: Life::Live,
            outcome: Known::Unknown,
            votes: BTreeSet::new(),
            settled: None,
            sealed_then: None,
            rollback: None,
            undo: None,
            evidence: false,
            was_void: false,
            late: false,
            closed: false,
        })
    }

    /// Gives the effect its edges and judges what they name.
    fn rest(&self, effect: &mut Effect, after: Option<&[Id]>, tip: &Ids) -> Ruling<()> {
        let name = effect.branch;
        let mut rests = |on: Id, version: bool| *effect.deps.entry(on).or_default() |= version;
        if after.is_none() {
            tip.iter().filter(|e| self.state(**e) == Life::Live).for_each(|e| rests(*e, false));
        }
        for dependency in after.unwrap_or_default() {
            if !self.effects.contains_key(dependency) {
                return refuse("not_found");
            }
            for target in self.expand([dependency]) {
                if self.state(target) == Life::Doomed {
                    return refuse("doomed_dependency");
                }
                rests(target, false);
            }
        }
        for seen in &self.branches[&name].seen {
            seen.writers.iter().for_each(|w| rests(*w, seen.kind == Saw::Version));
        }
        for (key, version) in effect.reads.clone() {
            if let Some(version) = version {
                self.check_version(name, key, version)?.iter().for_each(|w| rests(*w, true));
            } else if !effect.deferred {
                self.check_read(name, key)?.iter().for_each(|w| rests(*w, false));
            }
        }
        if effect.deferred { Ok(()) } else { self.check_writes(effect) }
    }

    /// A written key is neither dirty nor in flight, and a version named for it is the newest (C9).
    fn check_writes(&self, effect: &mut Effect) -> Ruling<()> {
        for key in effect.writes.clone() {
            if !self.dirty(key).is_empty() {
                return refuse("dirty_key");
            }
            let writers = self.live_writers(key);
            if writers.iter().any(|w| self.effects[w].outcome == Known::Unknown) {
                return refuse("key_busy");
            }
            if self.branches[&effect.branch].depend {
                for writer in writers {
                    effect.deps.entry(writer).or_default();
                }
            }
        }
        for key in &effect.writes {
            let Some((_, Some(version))) = effect.reads.iter().find(|read| read.0 == *key) else {
                continue;
            };
            let stands = |e: &&Effect| {
                self.wrote(e.id, *key) && matches!(e.state, Life::Live | Life::Committed)
            };
            let newest = self.effects.values().filter(stands).map(|e| e.id).max();
            if newest.is_some_and(|newest| newest != *version) {
                return refuse("key_busy");
            }
        }
        Ok(())
    }

    /// No limit is exceeded silently (I20, C13).
    fn check_limits(&mut self, effect: &Effect) -> Ruling<()> {
        let limits = self.limits;
        self.effects.insert(effect.id, effect.clone());
        let over = |value: usize, limit: Option<usize>| limit.is_some_and(|most| value > most);
        let mut exceeded = over(self.live().len(), limits.live_effects);
        for key in &effect.writes {
            let writers = self.live_writers(*key);
            let covered = |w: &Id| writers.iter().any(|o| o != w && self.closure(*o).contains(w));
            let front = writers.iter().filter(|w| !covered(w)).count();
            exceeded |= over(front, limits.live_writers_per_key);
        }
        exceeded |= over(self.closure(effect.id).len(), limits.closure);
        self.effects.remove(&effect.id);
        if exceeded { refuse("limit_exceeded") } else { Ok(()) }
    }

    /// Adds an edge to every writer that the running call may have seen; whether one was doomed (C22).
    fn look_again(&mut self, effect: Id, keys: &[Key]) -> bool {
        let since = self.effects[&effect].registered;
        let mut doomed = false;
        for key in keys {
            for writer in self.writers_since(*key, since) {
                if writer != effect {
                    self.get(effect).deps.entry(writer).or_default();
                    doomed |= self.state(writer) == Life::Doomed;
                }
            }
            doomed |= self.dirty_since(*key, since).iter().any(|w| *w != effect);
        }
        doomed
    }

    /// The keys whose names hold for the whole call.
    fn raw_reads(&self, effect: Id) -> Vec<Key> {
        let record = &self.effects[&effect];
        let raw = record.reads.iter().filter(|read| read.1.is_none() && !record.deferred);
        raw.map(|read| read.0).collect()
    }

    pub fn done(&mut self, effect: Id, token: u64) -> Ruling<()> {
        self.verb(|model| {
            let record = model.effects[&effect].clone();
            let settled = matches!(record.state, Life::Doomed | Life::Void);
            if settled {
                model.late_done(effect);
            }
            if record.token != token {
                if record.state == Life::Live && record.outcome == Known::Unknown {
                    model.get(effect).evidence = true; // C29
                }
                return refuse("stale_token");
            }
            if settled || record.outcome != Known::Unknown {
                return refuse("already_settled");
            }
            model.get(effect).outcome = Known::Done;
            if model.look_again(effect, &model.raw_reads(effect)) {
                model.doom(&Ids::from([effect]));
            }
            Ok(())
        })
    }

    /// The call never happened: the effect is void and leaves its place to what it rested on (C26, C30).
    pub fn not_run(&mut self, effect: Id, token: u64) -> Ruling<()> {
        self.verb(|model| {
            let record = model.effects[&effect].clone();
            if record.token != token {
                return refuse("stale_token");
            }
            let open = matches!(record.state, Life::Live | Life::Doomed);
            if record.outcome != Known::Unknown || record.evidence || !open {
                return refuse("already_settled");
            }
            model.get(effect).outcome = Known::NotRun;
            if record.state == Life::Doomed {
                let undo = model.undo(effect);
                if undo.begun == 0 {
                    undo.status = Status::Discarded;
                }
            } else if model.look_again(effect, &model.raw_reads(effect)) {
                model.doom(&Ids::from([effect]));
            } else {
                model.make_void(effect);
            }
            Ok(())
        })
    }

    /// Hands on what the effect rested on, and stops what says that it saw what never was.
    fn make_void(&mut self, effect: Id) {
        let named = |e: &Id| self.effects[e].deps.get(&effect) == Some(&true);
        let liars: Ids = self.live().into_iter().filter(named).collect();
        let (counts, position) = (self.counts(effect, None), self.position);
        let record = self.get(effect);
        record.sealed_then = Some(counts);
        record.state = Life::Void;
        record.settled = Some(position);
        let (owner, name) = (record.branch, record.name);
        let deps: Ids = record.deps.keys().copied().collect();
        if let Some(name) = name
            && self.names.get(&name) == Some(&effect)
        {
            self.names.remove(&name);
        }
        let heirs: Ids = self.direct(effect).union(&deps).copied().collect();
        for branch in self.branches.values_mut() {
            // Who had observed it rests on what it rested on, whatever becomes of it (section 3).
            for one in branch.seen.iter_mut().filter(|one| one.kind != Saw::Held) {
                if one.writers.contains(&effect) {
                    one.writers.extend(&heirs);
                }
            }
            if branch.handed.remove(&effect) | (branch.name == owner) && !deps.is_empty() {
                branch.seen.push(Seen::new(Saw::Inherited, None, deps.clone(), position));
            }
        }
        if !liars.is_empty() {
            self.doom(&liars);
        }
        for branch in self.branches.values_mut() {
            let saw = |s: &Seen| s.kind == Saw::Version && s.writers.contains(&effect);
            if branch.state == BranchIs::Open && branch.seen.iter().any(saw) {
                branch.state = BranchIs::Doomed;
            }
        }
    }

    /// A late call did run: once per effect its inverse is due under a new generation (C28, C31).
    fn late_done(&mut self, effect: Id) {
        let record = self.get(effect);
        if record.outcome == Known::Done {
            return;
        }
        record.outcome = Known::Done;
        record.late = true;
        record.evidence = true;
        let registered = record.registered;
        if record.state == Life::Void {
            record.was_void = true;
            self.doom(&Ids::from([effect]));
        }
        self.raise_generation(effect);
        self.earlier_due_again(effect, registered);
    }

    /// The running call has read the keys: it takes the edges, whatever the read rule says.
    pub fn late_observe(&mut self, effect: Id, token: u64, keys: &[Key]) -> Ruling<Ids> {
        self.verb(|model| {
            let record = &model.effects[&effect];
            if record.token != token {
                return refuse("stale_token");
            }
            if record.state != Life::Live || record.outcome != Known::Unknown {
                return refuse("already_settled");
            }
            if model.look_again(effect, keys) {
                model.doom(&Ids::from([effect]));
                return refuse("dirty_key");
            }
            let mut seen: Ids = keys.iter().flat_map(|key| model.live_writers(*key)).collect();
            seen.remove(&effect);
            Ok(seen)
        })
    }

    /// Somebody knows that the worker is gone (C32).
    pub fn close(&mut self, effect: Id) -> Ruling<()> {
        self.verb(|model| {
            let record = model.get(effect);
            record.closed |= record.outcome == Known::Unknown;
            Ok(())
        })
    }

    /// An outside party saw the effect: its class is at least partial.
    pub fn exposed(&mut self, effect: Id) -> Ruling<()> {
        self.verb(|model| {
            let record = model.get(effect);
            record.class = record.class.max(Class::Partial);
            Ok(())
        })
    }

    pub fn tick(&mut self) -> Ruling<()> {
        self.verb(|_| Ok(()))
    }

    pub fn claim(&mut self, agent: &str, lease_ms: u64) -> Ruling<Option<Claimed>> {
        self.verb(|model| Ok(model.claim_step(agent, lease_ms)))
    }

    pub fn complete(&mut self, step: Claimed) -> Ruling<()> {
        self.verb(|model| model.complete_step(step))
    }

    pub fn fail(&mut self, step: Claimed, end: Failing) -> Ruling<()> {
        self.verb(|model| model.fail_step(step, end))
    }
}
