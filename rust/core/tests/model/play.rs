//! The player of a sequence: what callers hold, how they choose, and how the model and the stores
//! beside it are asked the same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::branches::NewLine;
use super::dice::{AGENTS, Command, Dice, KEYS, Setting, call_from, version_of};
use super::effects::{Item, Registered};
use super::fence::{Ref, Sides};
use super::peer::{Ending, Peer};
use super::rollback::{Claimed, Failing};
use super::world::*;

/// A branch as some caller holds it; `base` is the tip of a parallel turn.
#[derive(Clone)]
pub struct Handle {
    pub name: Name,
    pub token: u64,
    pub base: Option<Ids>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b{}/{}", self.name, self.token)?;
        self.base.as_ref().map_or(Ok(()), |base| write!(f, " turn {base:?}"))
    }
}

/// One sequence under way.
pub struct Play {
    pub model: Model,
    pub peer: Peer,
    pub story: Vec<String>,
    /// Whether all that can be looked at is compared after every step.
    pub compare: bool,
    setting: Setting,
    clock: Arc<AtomicU64>,
    handles: BTreeMap<Name, Vec<Handle>>,
    turns: BTreeMap<Name, Vec<Handle>>,
    tokens: BTreeMap<Id, Vec<u64>>,
    claims: Vec<Claimed>,
    since: BTreeMap<Name, Vec<u64>>,
}

impl Play {
    pub fn new(setting: &Setting, clock: Arc<AtomicU64>, peer: Peer) -> Self {
        Play {
            model: Model::new(setting.policy, setting.limits),
            peer,
            story: Vec::new(),
            compare: true,
            setting: setting.clone(),
            clock,
            handles: BTreeMap::new(),
            turns: BTreeMap::new(),
            tokens: BTreeMap::new(),
            claims: Vec::new(),
            since: BTreeMap::new(),
        }
    }

    /// Asks the model and then every store; all that can be looked at is compared after each.
    fn both<T: std::fmt::Debug>(
        &mut self,
        said: String,
        model: impl FnOnce(&mut Model) -> Ruling<T>,
        store: impl FnOnce(&mut Peer, &Model, &Ruling<T>),
    ) -> Ruling<T> {
        self.model.now_ms = self.clock.load(Ordering::SeqCst);
        let answer = model(&mut self.model);
        self.story.push(format!("{said} -> {answer:?}"));
        store(&mut self.peer, &self.model, &answer);
        if self.compare {
            self.peer.compare(&self.model);
        } else {
            self.peer.learn(&self.model);
        }
        answer
    }

    fn advance(&mut self, seconds: u64) {
        self.clock.fetch_add(seconds * 1_000, Ordering::SeqCst);
        self.story.push(format!("{seconds} s pass"));
    }

    // Choosing among what there is

    fn open(&self) -> Vec<Name> {
        let open = self.handles.keys().copied();
        open.filter(|n| self.model.branches[n].state == BranchIs::Open).collect()
    }

    fn all(&self) -> Vec<Name> {
        self.handles.keys().copied().collect()
    }

    /// Mostly the newest handle of a branch that can work, sometimes any branch or a stale handle.
    fn handle(&self, dice: &mut Dice<'_>) -> Handle {
        let usual = self.open();
        let any = usual.is_empty() || dice.roll(32) == 31;
        let held = &self.handles[&dice.pick(&if any { self.all() } else { usual })];
        let place = if dice.often() { held.len() - 1 } else { dice.roll(held.len()) };
        held[place].clone()
    }

    /// An eager effect that is wanted, newest first; now and then any eager effect.
    fn effect(&self, dice: &mut Dice<'_>, wanted: impl Fn(&Effect) -> bool) -> Option<Id> {
        let any = dice.roll(16) == 15;
        let eager = self.model.effects.values().rev().filter(|e| !e.deferred);
        let pool: Vec<Id> = eager.filter(|e| any || wanted(e)).map(|e| e.id).collect();
        (!pool.is_empty()).then(|| dice.pick(&pool))
    }

    /// A token of the effect: mostly the newest.
    fn token(&self, dice: &mut Dice<'_>, effect: Id) -> u64 {
        let tokens = &self.tokens[&effect];
        if dice.often() { tokens[tokens.len() - 1] } else { dice.pick(tokens) }
    }

    fn newest_token(&self, effect: Id) -> u64 {
        self.tokens[&effect][self.tokens[&effect].len() - 1]
    }

    /// Something to commit or abort: an effect that is live, rarely any, or a branch.
    fn target(&self, dice: &mut Dice<'_>) -> Ref {
        if dice.roll(4) > 0 && !self.model.effects.is_empty() {
            let live = self.model.live();
            let any = live.is_empty() || dice.roll(16) == 15;
            let all: Vec<Id> = self.model.effects.keys().copied().collect();
            return Ref::Effect(dice.pick(&if any { all } else { live }));
        }
        let open = self.open();
        Ref::Branch(if open.is_empty() { 0 } else { dice.pick(&open) })
    }

    /// A caller got a new handle; turns and brackets of the old one are not used any more.
    fn handed(&mut self, name: Name, token: u64) {
        self.handles.entry(name).or_default().push(Handle { name, token, base: None });
        self.turns.remove(&name);
        self.since.remove(&name);
    }

    // Branches

    pub fn do_branch(&mut self, dice: &mut Dice<'_>) {
        let count = self.handles.len();
        let working =
            |n: &&Name| matches!(self.model.branches[n].state, BranchIs::Open | BranchIs::Doomed);
        let full = self.handles.keys().filter(working).count() >= self.setting.branches;
        let taken = full || (count > 0 && dice.roll(32) == 31);
        let name = if taken { dice.roll(count.max(1)) } else { count };
        let usual = self.open();
        let parents = if !usual.is_empty() && dice.often() { usual } else { self.all() };
        let child = self.setting.children && !parents.is_empty() && dice.roll(3) > 0;
        let new = NewLine {
            parent: child.then(|| dice.pick(&parents)),
            agent: dice.pick(&AGENTS),
            rule: dice.pick(self.setting.rules),
            depend: dice.pick(self.setting.depend),
            lease_ms: dice.pick(self.setting.leases),
        };
        let answer = self.both(
            format!("branch b{name} {new:?}"),
            |model| model.branch(name, new),
            |peer, _, wanted| peer.branch(name, new, wanted),
        );
        if let Ok(token) = answer {
            self.handed(name, token);
        }
    }

    fn do_takeover(&mut self, dice: &mut Dice<'_>) {
        let name = dice.pick(&self.all());
        self.takeover(name, dice.roll(4) == 3);
    }

    fn takeover(&mut self, name: Name, gone: bool) {
        let answer = self.both(
            format!("takeover b{name} gone={gone}"),
            |model| model.takeover(name, gone),
            |peer, model, wanted| peer.takeover(model, name, gone, wanted),
        );
        if let Ok(token) = answer {
            self.handed(name, token);
            for effect in self.model.own(name) {
                self.tokens.entry(effect).or_default().push(token);
            }
        }
    }

    pub fn do_resume(&mut self, dice: &mut Dice<'_>) {
        let stopped = |n: &Name| self.model.branches[n].state == BranchIs::Doomed;
        let stopped: Vec<Name> = self.all().into_iter().filter(stopped).collect();
        let handle = if !stopped.is_empty() && dice.often() {
            let held = &self.handles[&dice.pick(&stopped)];
            held[held.len() - 1].clone()
        } else {
            self.handle(dice)
        };
        let answer = self.both(
            format!("resume {handle:?}"),
            |model| model.resume(handle.name, handle.token),
            |peer, _, wanted| peer.resume(&handle, wanted),
        );
        if let Ok(token) = answer {
            self.handed(handle.name, token);
        }
    }

    fn do_heartbeat(&mut self, dice: &mut Dice<'_>) {
        let handle = self.handle(dice);
        let _ = self.both(
            format!("heartbeat {handle:?}"),
            |model| model.heartbeat(handle.name, handle.token),
            |peer, _, wanted| peer.heartbeat(&handle, wanted),
        );
    }

    fn do_merge(&mut self, dice: &mut Dice<'_>) {
        let open = self.open();
        let child = |n: &Name| {
            let parent = self.model.branches[n].parent;
            parent.is_some_and(|p| self.model.branches[&p].state == BranchIs::Open)
        };
        let children: Vec<Name> = open.into_iter().filter(child).collect();
        let handle = if !children.is_empty() && dice.often() {
            let held = &self.handles[&dice.pick(&children)];
            held[held.len() - 1].clone()
        } else {
            self.handle(dice)
        };
        let _ = self.both(
            format!("merge {handle:?}"),
            |model| model.merge(handle.name, handle.token),
            |peer, _, wanted| peer.merge(&handle, wanted),
        );
    }

    fn do_parallel(&mut self, dice: &mut Dice<'_>) {
        let handle = self.handle(dice);
        if handle.token == self.model.branches[&handle.name].token {
            let turn = Handle { base: Some(self.model.tip(handle.name)), ..handle };
            self.story.push(format!("parallel {turn:?}"));
            self.turns.entry(turn.name).or_default().push(turn);
        }
    }

    fn do_observe(&mut self, dice: &mut Dice<'_>) {
        let handle = self.handle(dice);
        let mut keys = vec![(dice.pick(&KEYS), None)];
        let mut since = None;
        let brackets = self.since.get(&handle.name).cloned().unwrap_or_default();
        match dice.roll(10) {
            5 => {
                let more = dice.pick(&KEYS);
                if more != keys[0].0 {
                    keys.push((more, None));
                }
            }
            6 => keys[0].1 = Some(version_of(dice, &self.model, keys[0].0)),
            7.. if !brackets.is_empty() => since = Some(dice.pick(&brackets)),
            _ => {}
        }
        self.observe(&handle, &keys, since);
    }

    fn observe(&mut self, handle: &Handle, keys: &[(Key, Option<Id>)], since: Option<u64>) {
        let answer = self.both(
            format!("observe {handle:?} {keys:?} since {since:?}"),
            |model| model.observe(handle.name, handle.token, keys, since),
            |peer, model, wanted| peer.observe(model, handle, keys, since, wanted),
        );
        if answer.is_ok() {
            self.since.entry(handle.name).or_default().push(self.model.position);
        }
    }

    // Effects

    fn register(&mut self, items: &[Item]) -> Vec<Registered> {
        let answer = self.both(
            format!("register {items:?}"),
            |model| model.register(items),
            |peer, _, wanted| peer.register(items, wanted),
        );
        let answers = answer.unwrap_or_default();
        for registered in &answers {
            if let (true, Some(token)) = (registered.created, registered.token) {
                self.tokens.insert(registered.effect, vec![token]);
            }
        }
        answers
    }

    fn do_register(&mut self, dice: &mut Dice<'_>) {
        let mut handle = self.handle(dice);
        if let Some(turns) = self.turns.get(&handle.name)
            && dice.roll(3) == 2
        {
            handle = dice.pick(turns);
        }
        let quick = dice.roll(3) < 2;
        let call = call_from(dice, &self.model, 0);
        let Handle { name: branch, token, base } = handle;
        for registered in self.register(&[Item { branch, token, base, call }]) {
            let eager = !self.model.effects[&registered.effect].deferred;
            if quick && registered.created && eager {
                self.report(registered.effect, self.newest_token(registered.effect), true);
            }
        }
    }

    fn do_register_many(&mut self, dice: &mut Dice<'_>) {
        let (one, other) = (self.handle(dice), self.handle(dice));
        let handles = [one.clone(), one, other];
        let count = 2 + dice.roll(2);
        let mut items = Vec::new();
        for (place, handle) in handles.iter().take(count).enumerate() {
            let mut data = dice.data[dice.place.min(dice.data.len())..].to_vec();
            data.extend(&dice.data[..(place + 3).min(dice.data.len())]);
            let call = call_from(&mut Dice::new(&data), &self.model, place);
            dice.place += 2;
            let Handle { name: branch, token, base } = handle.clone();
            items.push(Item { branch, token, base, call });
        }
        self.register(&items);
    }

    fn report(&mut self, effect: Id, token: u64, ran: bool) {
        let _ = self.both(
            format!("{} {effect} token {token}", if ran { "done" } else { "not_run" }),
            |model| if ran { model.done(effect, token) } else { model.not_run(effect, token) },
            |peer, _, wanted| peer.report(effect, token, ran, wanted),
        );
    }

    fn do_done(&mut self, dice: &mut Dice<'_>) {
        if let Some(effect) = self.effect(dice, unknown) {
            let token = self.token(dice, effect);
            self.report(effect, token, true);
        }
    }

    fn do_late(&mut self, dice: &mut Dice<'_>) {
        let late =
            |e: &Effect| matches!(e.state, Life::Doomed | Life::Void) && e.outcome != Known::Done;
        if let Some(effect) = self.effect(dice, late) {
            let token = self.token(dice, effect);
            self.report(effect, token, dice.roll(3) > 0);
        }
    }

    fn do_not_run(&mut self, dice: &mut Dice<'_>) {
        if let Some(effect) = self.effect(dice, unknown) {
            let token = self.token(dice, effect);
            self.report(effect, token, false);
        }
    }

    fn do_late_observe(&mut self, dice: &mut Dice<'_>) {
        let Some(effect) = self.effect(dice, unknown) else { return };
        let token = self.token(dice, effect);
        let keys = [dice.pick(&KEYS)];
        let _ = self.both(
            format!("effect {effect} observes {keys:?} token {token}"),
            |model| model.late_observe(effect, token, &keys),
            |peer, model, wanted| peer.late_observe(model, effect, token, &keys, wanted),
        );
    }

    fn do_close(&mut self, dice: &mut Dice<'_>) {
        if let Some(effect) = self.effect(dice, |e| e.outcome == Known::Unknown) {
            let _ = self.both(
                format!("close {effect}"),
                |model| model.close(effect),
                |peer, _, wanted| peer.close(effect, wanted),
            );
        }
    }

    fn do_exposed(&mut self, dice: &mut Dice<'_>) {
        let live = |id: Id| unknown(&self.model.effects[&id]);
        if let Some(effect) = self.effect(dice, unknown).filter(|id| live(*id)) {
            let token = self.newest_token(effect);
            let _ = self.both(
                format!("exposed {effect}"),
                |model| model.exposed(effect),
                |peer, _, wanted| peer.exposed(effect, token, wanted),
            );
        }
    }

    // Fence

    fn do_seal(&mut self, dice: &mut Dice<'_>) {
        let handle = self.handle(dice);
        let _ = self.both(
            format!("seal {handle:?}"),
            |model| model.seal(handle.name, handle.token),
            |peer, _, wanted| peer.seal(&handle, wanted),
        );
    }

    fn do_commit(&mut self, dice: &mut Dice<'_>) {
        let handle = self.handle(dice);
        let own: Vec<Id> = self.model.own(handle.name).into_iter().rev().collect();
        let current = handle.token == self.model.branches[&handle.name].token;
        let target = if !own.is_empty() && dice.roll(3) == 2 && current {
            Ref::Effect(dice.pick(&own))
        } else {
            Ref::Branch(handle.name)
        };
        let never = !dice.often();
        let _ = self.both(
            format!("commit {handle:?} {target:?} never={never}"),
            |model| model.commit(handle.name, handle.token, target, never),
            |peer, _, wanted| peer.commit(&handle, target, never, wanted),
        );
    }

    fn do_abort(&mut self, dice: &mut Dice<'_>) {
        let handle = self.handle(dice);
        let _ = self.both(
            format!("abort {handle:?}"),
            |model| model.abort(handle.name, handle.token),
            |peer, _, wanted| peer.abort(&handle, wanted),
        );
    }

    fn reconcile(&mut self, sides: &Sides) {
        let _ = self.both(
            format!("reconcile {sides:?}"),
            |model| model.reconcile(sides),
            |peer, _, wanted| peer.reconcile(sides, wanted),
        );
    }

    fn do_reconcile(&mut self, dice: &mut Dice<'_>) {
        let newest = self.model.live().into_iter().rev();
        let resting: Vec<Id> = newest.filter(|e| !self.model.closure(*e).is_empty()).collect();
        let side = |dice: &mut Dice<'_>| {
            let mut refs: Vec<Ref> = (0..dice.roll(3)).map(|_| self.target(dice)).collect();
            refs.dedup();
            refs
        };
        let commit = if !resting.is_empty() && dice.roll(3) == 2 {
            vec![Ref::Effect(dice.pick(&resting))]
        } else {
            side(dice)
        };
        let abort = side(dice);
        let (closure, drop_winners) = (dice.roll(2) == 1, dice.roll(3) == 0);
        let never = !dice.often();
        self.reconcile(&Sides { commit, abort, closure, drop_winners, never });
    }

    fn do_abort_effect(&mut self, dice: &mut Dice<'_>) {
        let live = self.model.live();
        if !live.is_empty() {
            let abort = vec![Ref::Effect(dice.pick(&live))];
            let commit = Vec::new();
            let (closure, drop_winners, never) = (false, false, false);
            self.reconcile(&Sides { commit, abort, closure, drop_winners, never });
        }
    }

    // Undo

    fn work_left(&self) -> bool {
        self.model.effects.keys().any(|e| self.model.unfinished(*e))
    }

    fn claim(&mut self, agent: &'static str) -> Option<Claimed> {
        let answer = self.both(
            format!("claim {agent}"),
            |model| model.claim(agent, 60_500),
            |peer, _, wanted| peer.claim(agent, 60_500, wanted),
        );
        answer.ok().flatten()
    }

    fn do_claim(&mut self, dice: &mut Dice<'_>) {
        if self.work_left() || dice.roll(16) == 0 {
            let step = self.claim(dice.pick(&["*", AGENTS[0], AGENTS[1]]));
            self.claims.extend(step);
        }
    }

    fn do_end(&mut self, dice: &mut Dice<'_>) {
        if self.claims.is_empty() {
            return self.do_claim(dice);
        }
        let step = self.claims.remove(dice.roll(self.claims.len()));
        let end = dice.pick(&[
            Ending::Complete,
            Ending::Complete,
            Ending::Complete,
            Ending::Fail(Failing::Error),
            Ending::Fail(Failing::Permanent),
            Ending::Fail(Failing::Later(7_500)),
            Ending::Release,
            Ending::Renew(90_500),
        ]);
        self.end(step, end);
    }

    fn end(&mut self, step: Claimed, end: Ending) {
        let answer = self.both(
            format!("end {step:?} {end:?}"),
            |model| match end {
                Ending::Complete => model.complete(step),
                Ending::Fail(how) => model.fail(step, how),
                Ending::Release => model.verb(|model| model.release_step(step)),
                Ending::Renew(lease_ms) => model.verb(|model| model.renew_step(step, lease_ms)),
            },
            |peer, _, wanted| peer.end(step, end, wanted),
        );
        if matches!(end, Ending::Renew(_)) && answer.is_ok() {
            self.claims.push(step);
        }
    }

    fn do_drain(&mut self, dice: &mut Dice<'_>) {
        for _ in 0..=dice.roll(8) {
            let pause = dice.pick(&[0, 0, 2]);
            self.advance(pause);
            let Some(step) = self.claim("*") else { return };
            let end = match dice.roll(8) {
                5 | 6 => Ending::Fail(Failing::Error),
                7 => Ending::Fail(Failing::Permanent),
                _ => Ending::Complete,
            };
            self.end(step, end);
        }
    }

    fn do_compensate(&mut self, dice: &mut Dice<'_>) {
        if self.work_left() || dice.roll(16) == 0 {
            self.compensate();
        }
    }

    /// One worker runs all that is due, and every handler succeeds. Nothing may be in a backoff:
    /// compensate would sleep through it, and the clock of a test stands.
    fn compensate(&mut self) {
        let now_ms = self.clock.load(Ordering::SeqCst);
        let backoff = |e: &Effect| {
            let undo = e.undo.as_ref();
            undo.is_some_and(|u| u.status == Status::Due && u.not_before_ms > now_ms)
        };
        if self.model.effects.values().any(backoff) {
            self.advance(40);
        }
        let mut order = Vec::new();
        let _ = self.both(
            "compensate".to_owned(),
            |model| {
                while let Some(step) = model.claim("*", 60_500)? {
                    model.complete(step)?;
                    order.push(step.effect);
                }
                Ok(order)
            },
            |peer, _, wanted| peer.compensate(wanted.as_deref().unwrap_or_default()),
        );
    }

    fn do_person(&mut self, dice: &mut Dice<'_>) {
        let gated = |gate: Gate| -> Vec<Id> {
            self.model.rollbacks.values().filter(|r| r.gate == gate).map(|r| r.id).collect()
        };
        let (pending, denied) = (gated(Gate::Pending), gated(Gate::Denied));
        let repairable = |e: &&Effect| {
            let kinds = ["error", "permanent", "timeout", "conflict", "expired"];
            let status = e.undo.as_ref().map(|u| u.status);
            matches!(status, Some(Status::Failed(kind)) if kinds.contains(&kind))
        };
        let failed: Vec<Id> =
            self.model.effects.values().filter(repairable).map(|e| e.id).collect();
        if !pending.is_empty() {
            let (rollback, answer) = (dice.pick(&pending), dice.roll(6));
            self.answer(rollback, answer != 4, answer != 5);
        } else if !denied.is_empty() && dice.roll(3) > 0 {
            let rollback = dice.pick(&denied);
            let ask = |model: &mut Model| {
                model.verb(|model| {
                    model.ask_again(rollback);
                    Ok(())
                })
            };
            let said = format!("ask again for {rollback}");
            let _ = self.both(said, ask, |peer, _, wanted| peer.ask_again(rollback, wanted));
        } else if !failed.is_empty() {
            let (effect, retry) = (dice.pick(&failed), dice.roll(2) == 1);
            let repair = |model: &mut Model| {
                model.verb(|model| {
                    if retry {
                        model.retry_step(effect)
                    } else {
                        model.resolve_step(effect)
                    }
                    Ok(())
                })
            };
            let said = format!("repair {effect} retry={retry}");
            let _ = self.both(said, repair, |peer, model, wanted| {
                peer.repair(model, effect, retry, wanted);
            });
        }
    }

    fn answer(&mut self, rollback: Id, approve: bool, reason: bool) {
        let _ = self.both(
            format!("answer {rollback} approve={approve} reason={reason}"),
            |model| model.verb(|model| model.answer(rollback, approve, reason)),
            |peer, _, wanted| peer.answer(rollback, approve, reason || !approve, wanted),
        );
    }

    // Things that go wrong together

    /// A worker outlives its lease; another does its work, then the first one reports.
    fn do_stall(&mut self, dice: &mut Dice<'_>) {
        let Some(step) = self.claim("*") else { return };
        self.advance(70);
        self.compensate();
        let end = dice.pick(&[
            Ending::Complete,
            Ending::Complete,
            Ending::Fail(Failing::Error),
            Ending::Release,
            Ending::Renew(90_500),
        ]);
        self.end(step, end);
    }

    /// A branch is taken over while a call runs; the old worker reports, then perhaps the new one.
    fn do_zombie(&mut self, dice: &mut Dice<'_>) {
        let Some(effect) = self.effect(dice, unknown) else { return };
        self.takeover(self.model.effects[&effect].branch, dice.roll(4) == 3);
        let stale = self.tokens[&effect][self.tokens[&effect].len() - 2];
        self.report(effect, stale, dice.roll(4) > 0);
        if dice.roll(2) == 1 {
            self.report(effect, self.newest_token(effect), false);
        }
    }

    /// A branch says that it saw the version of a call that then turns out never to have run, or did it?
    fn do_mistake(&mut self, dice: &mut Dice<'_>) {
        let wanted = |e: &Effect| unknown(e) && !e.writes.is_empty();
        let Some(effect) = self.effect(dice, wanted) else { return };
        if !wanted(&self.model.effects[&effect]) {
            return;
        }
        let keys: Vec<Key> = self.model.effects[&effect].writes.iter().copied().collect();
        let (key, named) = (dice.pick(&keys), dice.roll(3) > 0);
        let handle = self.handle(dice);
        self.observe(&handle, &[(key, named.then_some(effect))], None);
        let token = self.newest_token(effect);
        if unknown(&self.model.effects[&effect]) {
            self.report(effect, token, false);
        }
        if dice.roll(4) == 3 {
            self.do_register(dice);
            self.report(effect, token, true);
        }
    }

    // Time

    fn tick(&mut self) {
        let _ = self.both("tick".to_owned(), Model::tick, |peer, _, _| peer.tick());
    }

    fn do_time(&mut self, dice: &mut Dice<'_>) {
        let seconds = dice.pick(&[1, 3, 10, 35, 70]);
        self.advance(seconds);
        if dice.often() {
            self.tick();
        }
    }

    /// Ends every claim, lets persons approve, and undoes all that can be undone.
    pub fn finish(&mut self) {
        for step in std::mem::take(&mut self.claims) {
            self.end(step, Ending::Release);
        }
        for _ in 0..2 {
            let pending = self.model.rollbacks.values().filter(|r| r.gate == Gate::Pending);
            for rollback in pending.map(|r| r.id).collect::<Vec<_>>() {
                self.answer(rollback, true, true);
            }
            self.advance(200);
            self.tick();
            self.compensate();
        }
    }

    /// The process closes its stores and opens them anew. What fell due is done first, since closing
    /// may write; brackets do not outlive the objects that held them.
    pub fn reopen(&mut self) {
        self.tick();
        self.since.clear();
        let _ = self.both("reopen".to_owned(), |_| Ok(()), |peer, _, _| peer.reopen());
    }

    /// Plays one command.
    pub fn play(&mut self, command: &Command) {
        let dice = &mut Dice::new(command);
        let verb = dice.roll(256);
        if self.open().is_empty() && verb < 128 {
            let stopped =
                self.model.branches.values().any(|branch| branch.state == BranchIs::Doomed);
            if stopped && verb % 2 == 1 { self.do_resume(dice) } else { self.do_branch(dice) }
        } else if !self.handles.is_empty() {
            let mut left = verb;
            for (weight, act) in VERBS {
                if left < *weight {
                    return act(self, dice);
                }
                left -= weight;
            }
        }
    }
}

fn unknown(effect: &Effect) -> bool {
    effect.outcome == Known::Unknown && effect.state == Life::Live
}

type Act = fn(&mut Play, &mut Dice<'_>);

/// How often each verb is played, of 256 rolls.
const VERBS: &[(usize, Act)] = &[
    (58, Play::do_register),
    (9, Play::do_branch),
    (20, Play::do_done),
    (13, Play::do_observe),
    (10, Play::do_late_observe),
    (10, Play::do_not_run),
    (9, Play::do_late),
    (8, Play::do_register_many),
    (5, Play::do_parallel),
    (9, Play::do_seal),
    (9, Play::do_commit),
    (7, Play::do_reconcile),
    (5, Play::do_abort_effect),
    (2, Play::do_abort),
    (7, Play::do_resume),
    (3, Play::do_takeover),
    (2, Play::do_heartbeat),
    (5, Play::do_merge),
    (3, Play::do_close),
    (2, Play::do_exposed),
    (6, Play::do_claim),
    (9, Play::do_end),
    (6, Play::do_drain),
    (6, Play::do_compensate),
    (11, Play::do_person),
    (4, Play::do_stall),
    (3, Play::do_zombie),
    (4, Play::do_mistake),
    (9, Play::do_time),
    (2, |play, _| play.reopen()),
];
