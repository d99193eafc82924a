//! Views of the state: what answers show, and measures that limits ask for.

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, State};
use crate::model::{BranchId, BranchInfo, EffectId, Outcome};

impl Effect {
    /// Its unknown outcome keeps a fence from committing it.
    pub fn blocks_by_outcome(&self) -> bool {
        self.outcome == Outcome::Unknown && !self.is_deferred()
    }
}

impl State {
    /// A snapshot of a branch in memory.
    pub fn branch_info(&self, id: BranchId) -> Option<BranchInfo> {
        let branch = self.branches.get(&id)?;
        let parent = branch
            .parent
            .and_then(|parent| self.branches.get(&parent))
            .map(|parent| parent.name.clone());
        Some(BranchInfo {
            id,
            name: branch.name.clone(),
            agent: branch.agent.clone(),
            parent,
            token: branch.token,
            state: branch.state,
            // What a fence has settled leaves the tip only when the next command tidies up.
            tip: branch.tip.iter().copied().filter(|id| self.live_effect(*id).is_some()).collect(),
            reads: branch.reads,
        })
    }

    /// Length of the longest chain of live effects that ends in one of these. The members of a ring
    /// count as a chain in the order of their ids.
    pub fn longest_chain(&mut self, ends: &[EffectId]) -> u64 {
        let mut longest: BTreeMap<EffectId, u64> = BTreeMap::new();
        for id in self.closure(ends) {
            let below = self
                .graph
                .dependencies(id.0)
                .into_iter()
                .filter_map(|on| longest.get(&EffectId(on)).copied())
                .max()
                .unwrap_or(0);
            longest.insert(id, below + 1);
        }
        longest.values().copied().max().unwrap_or(0)
    }
}

impl State {
    /// After a start that folded only what is needed: rollbacks of which no member is in memory were
    /// finished, and their end was not needed.
    pub fn forget_absent(&mut self) {
        let gone: Vec<_> = self
            .rollbacks
            .values()
            .filter(|rollback| rollback.members.iter().all(|id| !self.effects.contains(*id)))
            .map(|rollback| rollback.id)
            .collect();
        for rollback in gone {
            self.forget_confirmation(rollback);
            self.in_time(rollback);
            self.rollbacks.remove(&rollback);
            self.approvals.retain(|_, approval| {
                approval.info.subject != crate::model::Subject::Rollback(rollback)
            });
        }
        let branches: Vec<BranchId> = self.branches.keys().copied().collect();
        for branch in branches {
            self.forget_branch(branch);
        }
    }

    /// Finishes a start: what is derived from the whole is derived now, and every intent looks anew.
    pub fn settle_in(&mut self) {
        self.tidy();
        self.late_edges = self.graph.has_late_edges();
        let branches: Vec<BranchId> = self.branches.keys().copied().collect();
        for id in branches {
            self.refresh_base(id);
            self.refresh_tip(id);
            if let Some(branch) = self.branches.get_mut(&id) {
                branch.has_committed = true;
            }
        }
        let mut keys: Vec<crate::model::Key> =
            self.effects.iter().flat_map(|effect| effect.writes.iter().cloned()).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            self.refresh_frontier(&key);
        }
        self.awake.extend(self.intents.keys().copied());
        self.order = None;
        self.owners.clear();
    }

    /// Where two states differ, in words; `None` where they are equal. Scratch space and hints do
    /// not count.
    pub fn difference(&self, other: &State) -> Option<String> {
        let compare = |name: &str, left: String, right: String| {
            (left != right).then(|| format!("{name}: {left} against {right}"))
        };
        let effects = |state: &State| -> Vec<String> {
            state.effects.iter().map(|effect| state.effect_text(effect)).collect()
        };
        let (left, right) = (effects(self), effects(other));
        for place in 0..left.len().max(right.len()) {
            let text = |side: &[String]| side.get(place).cloned().unwrap_or_default();
            if let Some(difference) = compare("effect", text(&left), text(&right)) {
                return Some(difference);
            }
        }
        self.parts()
            .into_iter()
            .zip(other.parts())
            .find_map(|((name, left), (_, right))| compare(name, left, right))
    }

    /// All but the effects that counts in a comparison, as text.
    fn parts(&self) -> Vec<(&'static str, String)> {
        let state = self;
        vec![
            (
                "settings",
                format!("{:?}", (&state.limits, &state.policy, &state.frozen, state.incarnation)),
            ),
            ("branches", format!("{:?}", state.branch_texts())),
            (
                "intents",
                format!(
                    "{:?}",
                    state
                        .intents
                        .values()
                        .map(|i| (i.id, &i.targets, i.committed))
                        .collect::<Vec<_>>()
                ),
            ),
            (
                "rollbacks",
                format!(
                    "{:?}",
                    state
                        .rollbacks
                        .values()
                        .map(|r| (
                            r.id,
                            &r.approvals,
                            r.approved,
                            r.denied,
                            r.moved_ms,
                            r.confirm_by_ms
                        ))
                        .collect::<Vec<_>>()
                ),
            ),
            (
                "requests",
                format!(
                    "{:?}",
                    state
                        .requests
                        .iter()
                        .map(|(id, asked)| (id, &asked.request, &asked.approvals))
                        .collect::<Vec<_>>()
                ),
            ),
            ("causes", format!("{:?}", state.causes)),
            (
                "approvals",
                format!("{:?}", state.approvals.values().map(|a| &a.info).collect::<Vec<_>>()),
            ),
            ("alerts", format!("{:?}", state.alerts.keys().collect::<Vec<_>>())),
            ("breaks", state.breaks.text()),
            ("artifacts", format!("{:?}", state.artifacts)),
            ("outbox", format!("{:?}", state.outbox)),
            ("running", format!("{:?}", state.running)),
            ("timers", format!("{:?}", state.timers)),
            ("live", format!("{}", state.live)),
        ]
    }

    fn effect_text(&self, effect: &Effect) -> String {
        let keys: Vec<String> = effect
            .writes
            .iter()
            .filter_map(|key| self.keys.get(key))
            .map(|entry| {
                let mut frontier = entry.frontier.clone();
                frontier.sort_unstable();
                let later = entry.later.as_ref().map(|later| later.effect);
                format!("{:?} {frontier:?} {later:?}", entry.writers)
            })
            .collect();
        let mut missing = effect.missing_votes.clone();
        missing.sort_unstable();
        format!(
            "{} on {} token {} {:?} {:?} {:?} votes {missing:?} rests on {:?} named {:?} voids {:?} \
             late {} evidence {} closed {} governed {} position {} step {:?} rollback {:?} delivery {:?} keys {keys:?}",
            effect.id,
            effect.branch,
            effect.token,
            effect.state,
            effect.outcome,
            effect.class,
            self.graph.dependencies(effect.id.0),
            effect.named,
            effect.voids,
            effect.late,
            effect.evidence,
            effect.closed,
            effect.governed,
            effect.position,
            effect.step,
            effect.rollback,
            effect.delivery,
        )
    }

    fn branch_texts(&self) -> Vec<String> {
        self.branches.values().map(|branch| self.branch_text(branch)).collect()
    }

    fn branch_text(&self, branch: &super::Branch) -> String {
        let handed: Vec<EffectId> =
            branch.handed.iter().copied().filter(|id| self.live_effect(*id).is_some()).collect();
        format!(
            "{} {:?} {:?} token {} parent {:?} children {:?} effects {:?} unvoted {:?} tip {:?} handed {:?} \
             observed {:?} stands {:?} named {:?} held {:?} lease {:?}",
            branch.id,
            branch.name,
            branch.state,
            branch.token,
            branch.parent,
            branch.children,
            branch.effects,
            branch.unvoted,
            branch.tip,
            handed,
            branch.observed,
            branch.stands,
            branch.named,
            branch.held,
            branch.lease_until_ms,
        )
    }
}

impl State {
    /// Whether a read would be admitted now: its key is not dirty, and the rule lets it in.
    pub fn readable(
        &self,
        branch: BranchId,
        read: &crate::model::Read,
        rule: crate::model::ReadRule,
    ) -> bool {
        use crate::model::ReadRule;
        if read.version.is_none() && !self.dirty_writers(&read.key).is_empty() {
            return false;
        }
        let writers = match read.version {
            Some(version) => vec![EffectId(version)],
            None => self.live_writers(&read.key),
        };
        let lineage = self.lineage(branch);
        writers.iter().all(|writer| {
            self.live_effect(*writer).is_none_or(|effect| {
                lineage.contains(&effect.branch)
                    || match rule {
                        ReadRule::Speculative => true,
                        ReadRule::Sealed => effect.is_sealed(),
                        ReadRule::Committed => false,
                    }
            })
        })
    }
}

impl State {
    /// Whether an agent may run the inverse of an effect: its own, one that names it, or anyone's.
    pub fn may_undo(&self, agent: &str, effect: &Effect) -> bool {
        let owner = self.branches.get(&effect.branch).map(|branch| branch.agent.as_str());
        let named = effect.inverse.as_ref().and_then(|inverse| inverse.agent.as_deref());
        agent == "*" || named == Some("*") || named.or(owner) == Some(agent)
    }

    /// Steps that a worker may ask for, whatever they wait for.
    fn open_steps<'a>(
        &'a self,
        spec: &'a crate::model::ClaimSpec,
    ) -> impl Iterator<Item = (&'a Effect, &'a super::Step)> {
        let rollbacks = self.rollbacks.values().filter(move |rollback| {
            rollback.open && spec.rollback.is_none_or(|only| only == rollback.id)
        });
        rollbacks
            .flat_map(|rollback| rollback.members.iter())
            .filter_map(|id| self.effects.get(*id))
            .filter(move |effect| {
                !spec.except.contains(&effect.id) && self.may_undo(&spec.agent, effect)
            })
            .filter_map(|effect| Some((effect, effect.step.as_deref()?)))
            .filter(|(_, step)| !step.is_finished())
    }

    /// The next moment after now at which a step may run that only its backoff holds up, in
    /// milliseconds.
    pub fn next_backoff_ms(&mut self, spec: &crate::model::ClaimSpec, now_ms: u64) -> Option<u64> {
        let waiting: Vec<(u64, EffectId)> = self
            .open_steps(spec)
            .filter(|(effect, _)| {
                let rollback = effect.rollback.and_then(|id| self.rollbacks.get(&id));
                rollback.is_some_and(|rollback| rollback.approved)
            })
            .filter_map(|(effect, step)| match step.status {
                super::StepStatus::Pending { again_ms } => Some((again_ms?, effect.id)),
                _ => None,
            })
            .filter(|(again_ms, _)| *again_ms > now_ms)
            .collect();
        let ready: BTreeSet<EffectId> =
            if waiting.is_empty() { BTreeSet::new() } else { self.undo_order().ready().collect() };
        waiting
            .into_iter()
            .filter(|(_, id)| ready.contains(id) && self.guard(*id) == super::Guard::Free)
            .map(|(again_ms, _)| again_ms)
            .min()
    }

    /// Steps that a worker may come to run: neither finished nor failed.
    pub fn steps_left(&self, spec: &crate::model::ClaimSpec) -> Vec<EffectId> {
        let left = self.open_steps(spec).filter(|(_, step)| !step.is_failed());
        left.map(|(effect, _)| effect.id).collect()
    }
}
