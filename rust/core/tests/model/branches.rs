//! Branches: tokens, observations, stopping and resuming, children, and the verbs through a branch.

use super::fence::{Kind, Ref, Settled, Sides};
use super::world::*;

/// A branch that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewLine {
    pub agent: &'static str,
    pub parent: Option<Name>,
    pub rule: Rule,
    pub depend: bool,
    pub lease_ms: Option<u64>,
}

impl Model {
    /// Makes a method one step: timers first, then the verb, then what follows, refused or not (C1).
    pub fn verb<T>(&mut self, act: impl FnOnce(&mut Model) -> Ruling<T>) -> Ruling<T> {
        self.begin();
        let answer = act(self);
        self.settle();
        answer
    }

    pub fn guard_token(&self, name: Name, token: u64) -> Ruling<()> {
        if self.branches[&name].token == token { Ok(()) } else { refuse("stale_token") }
    }

    pub fn guard_open(&self, name: Name) -> Ruling<()> {
        match self.branches[&name].state {
            BranchIs::Open => Ok(()),
            BranchIs::Doomed => refuse("doomed_branch"),
            BranchIs::Merged | BranchIs::Aborted => refuse("branch_closed"),
        }
    }

    /// Whether an inverse of one of the branch's effects is claimed (I16).
    pub fn compensating(&self, name: Name) -> bool {
        let claimed =
            |e: &Id| self.effects[e].undo.as_ref().is_some_and(|u| u.status == Status::Claimed);
        self.own(name).iter().any(claimed)
    }

    fn lease_end(&self, lease_ms: Option<u64>) -> Option<u64> {
        lease_ms.map(|lease| self.now_ms + lease)
    }

    /// A child starts with what its parent holds, has observed and was refused.
    pub fn branch(&mut self, name: Name, new: NewLine) -> Ruling<u64> {
        self.verb(|model| {
            if model.branches.contains_key(&name) {
                return refuse("branch_exists");
            }
            let (mut handed, mut seen) = (Ids::new(), Vec::new());
            if let Some(parent) = new.parent {
                model.guard_open(parent)?;
                handed.extend(model.own(parent));
                handed.extend(&model.branches[&parent].handed);
                handed.retain(|e| model.state(*e) == Life::Live);
                seen.clone_from(&model.branches[&parent].seen);
            }
            let token = model.new_token();
            let branch = Branch {
                name,
                agent: new.agent,
                parent: new.parent,
                rule: new.rule,
                depend: new.depend,
                token,
                lease_ms: new.lease_ms,
                lease_until_ms: model.lease_end(new.lease_ms),
                state: BranchIs::Open,
                handed,
                seen,
            };
            model.branches.insert(name, branch);
            Ok(token)
        })
    }

    fn renew(&mut self, name: Name) {
        let until = self.lease_end(self.branches[&name].lease_ms);
        self.line(name).lease_until_ms = until;
    }

    /// New tokens for the branch and its effects (C21, C32).
    pub fn takeover(&mut self, name: Name, worker_gone: bool) -> Ruling<u64> {
        self.verb(|model| {
            let token = model.new_token();
            model.line(name).token = token;
            model.renew(name);
            for effect in model.own(name) {
                let record = model.get(effect);
                record.token = token;
                record.closed |= worker_gone && record.outcome == Known::Unknown;
            }
            Ok(token)
        })
    }

    /// Goes on from what survives: doomed observations are dropped, held ones too, live ones stay.
    pub fn resume(&mut self, name: Name, token: u64) -> Ruling<u64> {
        self.verb(|model| {
            model.guard_token(name, token)?;
            if matches!(model.branches[&name].state, BranchIs::Merged | BranchIs::Aborted) {
                return refuse("branch_closed");
            }
            let mut seen = model.branches[&name].seen.clone();
            for one in &mut seen {
                let stood_for = one.writers.iter().any(|w| model.state(*w) == Life::Void);
                if one.kind == Saw::Version && stood_for {
                    // What stands for a named version was not named itself.
                    one.kind = Saw::Plain;
                }
                one.writers = model.expand(&one.writers);
                one.writers.retain(|w| model.state(*w) != Life::Doomed);
            }
            seen.retain(|one| !one.writers.is_empty() && one.kind != Saw::Held);
            let mut handed = model.expand(&model.branches[&name].handed);
            handed.retain(|e| model.state(*e) == Life::Live);
            let token = model.new_token();
            let branch = model.line(name);
            branch.seen = seen;
            branch.handed = handed;
            branch.state = BranchIs::Open;
            branch.token = token;
            model.renew(name);
            Ok(token)
        })
    }

    pub fn heartbeat(&mut self, name: Name, token: u64) -> Ruling<()> {
        self.verb(|model| {
            model.guard_token(name, token)?;
            model.guard_open(name)?;
            model.renew(name);
            Ok(())
        })
    }

    /// The child's vote: its effects and observations are its parent's from now on.
    pub fn merge(&mut self, name: Name, token: u64) -> Ruling<()> {
        self.verb(|model| {
            model.guard_token(name, token)?;
            model.guard_open(name)?;
            let Some(parent) = model.branches[&name].parent else { return refuse("options") };
            model.guard_open(parent)?;
            for effect in model.own(name) {
                let record = model.get(effect);
                if record.state == Life::Live {
                    record.votes.insert(Some(name));
                }
                record.branch = parent;
            }
            let seen = model.branches[&name].seen.clone();
            model.line(parent).seen.extend(seen);
            for branch in model.branches.values_mut() {
                if branch.parent == Some(name) {
                    branch.parent = Some(parent);
                }
            }
            model.line(name).state = BranchIs::Merged;
            Ok(())
        })
    }

    /// Whether a held observation still waits for one of its writers (C20).
    pub fn blocking(&self, name: Name, seen: &Seen) -> bool {
        seen.kind == Saw::Held && seen.writers.iter().any(|w| self.offends(name, seen.rule, *w))
    }

    /// Whether resting on the writer breaks the read rule.
    fn offends(&self, name: Name, rule: Rule, writer: Id) -> bool {
        let record = &self.effects[&writer];
        let inside = self.above(name).contains(&record.branch);
        if rule == Rule::Speculative || record.state != Life::Live || inside {
            return false;
        }
        rule == Rule::Committed || !self.counts(writer, None)
    }

    /// The writer that a version names, if it may be named (C7).
    pub fn check_version(&self, name: Name, key: Key, version: Id) -> Ruling<Ids> {
        if version == 0 {
            return Ok(Ids::new());
        }
        if !self.effects.contains_key(&version) || !self.wrote(version, key) {
            return refuse("not_found");
        }
        if matches!(self.state(version), Life::Doomed | Life::Void) {
            return refuse("doomed_dependency");
        }
        if self.offends(name, self.branches[&name].rule, version) {
            return refuse("uncommitted_key");
        }
        Ok(Ids::from([version]))
    }

    /// The live writers of a key read without a version, if they may be rested on.
    pub fn check_read(&self, name: Name, key: Key) -> Ruling<Ids> {
        if !self.dirty(key).is_empty() {
            return refuse("dirty_key");
        }
        let writers = self.live_writers(key);
        let rule = self.branches[&name].rule;
        if writers.iter().any(|w| self.offends(name, rule, *w)) {
            return refuse("uncommitted_key");
        }
        Ok(writers)
    }

    /// Judges one observation of one key.
    fn look(&self, name: Name, key: Key, version: Option<Id>, since: Option<u64>) -> Ruling<Ids> {
        let compensating = self.compensating(name);
        if let Some(version) = version {
            let writers = self.check_version(name, key, version)?;
            if compensating && writers.iter().any(|w| self.state(*w) == Life::Live) {
                return refuse("compensation_scope");
            }
            return Ok(writers);
        }
        if let Some(since) = since {
            let doomed =
                self.writers_since(key, since).iter().any(|w| self.state(*w) == Life::Doomed);
            if doomed || !self.dirty_since(key, since).is_empty() {
                return refuse("dirty_key");
            }
        }
        if compensating && !self.live_writers(key).is_empty() && self.dirty(key).is_empty() {
            return refuse("compensation_scope");
        }
        let mut writers = self.check_read(name, key)?;
        if let Some(since) = since {
            writers.extend(self.writers_since(key, since));
        }
        Ok(writers)
    }

    /// Records one observation, admitted or refused; the read has happened in any case (I12).
    fn see(&mut self, name: Name, key: Key, version: Option<Id>, since: Option<u64>) -> Ruling<()> {
        let position = self.position;
        match self.look(name, key, version, since) {
            Ok(writers) => {
                let branch = self.line(name);
                let mut kind = Saw::Plain;
                if version.is_some() {
                    kind = Saw::Version;
                    branch.seen.retain(|s| s.kind != Saw::Held || s.key != Some(key));
                }
                branch.seen.push(Seen::new(kind, Some(key), writers, position));
                Ok(())
            }
            Err(refused) => {
                if refused.code != "not_found" {
                    self.hold(name, key, version, since, refused.code);
                }
                Err(refused)
            }
        }
    }

    /// Remembers a refused observation; if it saw something doomed, the branch stops (C19, C20).
    fn hold(
        &mut self,
        name: Name,
        key: Key,
        version: Option<Id>,
        since: Option<u64>,
        code: &'static str,
    ) {
        let writers = match (version, since) {
            (Some(version), _) => Ids::from([version]),
            (None, None) => self.live_writers(key),
            (None, Some(since)) => {
                let mut writers = self.live_writers(key);
                writers.extend(self.writers_since(key, since));
                writers
            }
        };
        let mut held = Seen::new(Saw::Held, Some(key), writers, self.position);
        held.rule = self.branches[&name].rule;
        held.error = code;
        if code == "compensation_scope" {
            held.rule = Rule::Committed;
            held.error = "uncommitted_key";
        }
        let branch = self.line(name);
        if matches!(code, "dirty_key" | "doomed_dependency") {
            branch.state = BranchIs::Doomed;
        }
        branch.seen.push(held);
    }

    /// All keys are recorded; the first refusal is the answer (C18). The answer's position brackets.
    pub fn observe(
        &mut self,
        name: Name,
        token: u64,
        keys: &[(Key, Option<Id>)],
        since: Option<u64>,
    ) -> Ruling<Vec<Seen>> {
        self.verb(|model| {
            model.guard_token(name, token)?;
            model.guard_open(name)?;
            let answers: Vec<Ruling<()>> =
                keys.iter().map(|(key, version)| model.see(name, *key, *version, since)).collect();
            answers.into_iter().collect::<Ruling<Vec<()>>>()?;
            let seen = &model.branches[&name].seen;
            Ok(seen[seen.len() - keys.len()..].to_vec())
        })
    }

    /// Votes for all that the branch and those below have registered so far (C39).
    pub fn seal(&mut self, name: Name, token: u64) -> Ruling<()> {
        self.verb(|model| {
            model.guard_token(name, token)?;
            model.guard_open(name)?;
            model.seal_scope(name);
            Ok(())
        })
    }

    pub fn commit(&mut self, name: Name, token: u64, target: Ref, never: bool) -> Ruling<Fence> {
        self.verb(|model| {
            model.guard_token(name, token)?;
            if model.policy.reserved {
                return refuse("commit_reserved");
            }
            let committed = matches!(target, Ref::Effect(id) if model.state(id) == Life::Committed);
            if model.decide(target).kind != Kind::Abort && !committed {
                model.guard_open(name)?;
            }
            model.commit_votes(target, never)
        })
    }

    /// Aborts the branch by name; on a stopped or closed one it answers what was decided (C40).
    pub fn abort(&mut self, name: Name, token: u64) -> Ruling<Settled> {
        self.verb(|model| {
            model.guard_token(name, token)?;
            model.reconcile_sides(&Sides {
                commit: Vec::new(),
                abort: vec![Ref::Branch(name)],
                closure: false,
                drop_winners: false,
                never: false,
            })
        })
    }

    pub fn reconcile(&mut self, sides: &Sides) -> Ruling<Settled> {
        self.verb(|model| model.reconcile_sides(sides))
    }
}
