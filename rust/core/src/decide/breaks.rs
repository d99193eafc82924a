//! BREAK: an agent says that it cannot go on (section 6). Its work falls, everybody touched is told
//! and has to take note in time, and agents upstream of it wait until it has undone its own.

use std::collections::BTreeSet;

use super::{Ruling, Turn};
use crate::model::{
    BranchId, BranchState, BreakId, BreakSeverity, Command, Event, NoticeId, Reconciliation,
    Refusal, Reply, Severity, Signal, Target,
};

/// Agents that one BREAK names upstream, at most.
const UPSTREAM: usize = 1_024;

/// Agents that an escalation names, at most.
const NAMED: usize = 16;

impl Turn<'_> {
    /// Dooms a branch and all below it in one decision, and tells whom it touches. A branch that is
    /// doomed already, or was aborted by name, makes no new decision; the signal is told all the same.
    pub(super) fn signal_break(&mut self, command: &Command) -> Ruling<Reply> {
        let Command::SignalBreak {
            branch,
            token,
            severity,
            reason,
            recoverable,
            upstream,
            ack_within_ms,
        } = command
        else {
            return Ok(Reply::Nothing);
        };
        let (id, recoverable) = (*branch, *recoverable);
        let agent = self.agent_of_branch(id)?;
        if let Some(token) = token {
            self.holds(id, *token, "signal_break")?;
        }
        let upstream = upstream_of(&agent, upstream)?;
        if *ack_within_ms == 0 {
            let reason = "a time to acknowledge is longer than nothing".into();
            return Err(Refusal::Options { option: "ack_within", reason }.into());
        }
        if self.state.branches.get(&id).is_none_or(|known| known.merged) {
            self.takes_work(id)?;
        }
        let signal = Signal {
            branch: id,
            agent: agent.clone(),
            severity: *severity,
            reason: reason.clone(),
            recoverable,
            upstream,
            ack_by_ms: self.now_ms.saturating_add(*ack_within_ms),
        };
        let mut told = self.touched_before(id);
        told.insert(agent);
        told.extend(signal.upstream.iter().cloned());
        let by = token.is_some().then_some(signal.agent.as_str());
        let before = self.events.len();
        let answer = self.fall(id, by, &signal)?;
        told.extend(self.touched_since(before)?);
        let signal = BreakId(self.emit(Event::BreakSignalled(Box::new(signal))));
        for agent in told {
            self.emit(Event::Notified { signal, agent });
        }
        Ok(Reply::Reconciliation(answer))
    }

    /// One that cannot be recovered is closed by name and never resumes; another one is stopped.
    fn fall(&mut self, id: BranchId, by: Option<&str>, signal: &Signal) -> Ruling<Reconciliation> {
        let whole = [Target::Branch(id)];
        if !signal.recoverable {
            return self.settle_losers(&whole, by, &signal.reason);
        }
        let family = self.state.family(id);
        let live = family.iter().flat_map(|branch| self.state.live_of(*branch));
        let targets: Vec<Target> = live.map(Target::Effect).collect();
        let targets = if targets.is_empty() { None } else { Some(targets) };
        let mut answer = self.known_of(&[], &[id])?;
        if let Some(targets) = targets {
            let doomed = self.settle_losers(&targets, by, &signal.reason)?;
            answer.rollbacks.extend(doomed.rollbacks.iter().copied());
            answer = Reconciliation { rollbacks: answer.rollbacks, kept: answer.kept, ..doomed };
        }
        answer.rollbacks.sort_unstable();
        answer.rollbacks.dedup();
        for branch in family {
            let open = self.state.branches.get(&branch);
            if open.is_some_and(|known| known.state == BranchState::Open) {
                self.emit(Event::BranchStopped {
                    branch,
                    cause: None,
                    closed: false,
                    by: by.map(str::to_owned),
                    reason: Some(signal.reason.clone()),
                });
            }
        }
        Ok(answer)
    }

    pub(super) fn agent_of_branch(&self, id: BranchId) -> Ruling<String> {
        if let Some(branch) = self.state.branches.get(&id) {
            return Ok(branch.agent.clone());
        }
        match self.history.event(id.0)? {
            Some(Event::BranchCreated { agent, .. }) => Ok(agent),
            _ => Err(Refusal::no_such("branch", id.0).into()),
        }
    }

    /// Owners of what fell with effects of this branch before, as far as it is not undone.
    fn touched_before(&self, id: BranchId) -> BTreeSet<String> {
        let Some(branch) = self.state.branches.get(&id) else { return BTreeSet::new() };
        let own = branch.effects.iter().filter_map(|effect| self.state.effects.get(effect));
        let rollbacks: BTreeSet<_> = own.filter_map(|effect| effect.rollback).collect();
        let open = rollbacks.iter().filter_map(|id| self.state.rollbacks.get(id));
        open.filter(|rollback| rollback.open)
            .flat_map(|rollback| &rollback.members)
            .filter_map(|member| self.state.effects.get(*member))
            .map(|effect| self.state.owner(effect).to_owned())
            .filter(|agent| !agent.is_empty())
            .collect()
    }

    /// Agents of the branches that events from a place on have stopped: whoever owns something that
    /// was doomed is among them.
    fn touched_since(&self, place: usize) -> Ruling<BTreeSet<String>> {
        let mut stopped = BTreeSet::new();
        for event in &self.events[place..] {
            match event {
                Event::Doomed(doom) => stopped.extend(doom.stopped.iter().map(|cut| cut.branch)),
                Event::BranchStopped { branch, .. } => {
                    stopped.insert(*branch);
                }
                _ => {}
            }
        }
        stopped.into_iter().map(|branch| self.agent_of_branch(branch)).collect()
    }

    /// An agent takes note. A second time changes nothing.
    pub(super) fn ack_notice(&mut self, notice: NoticeId, agent: &str) -> Ruling<Reply> {
        let known = self.state.breaks.notices.get(&notice);
        let (waits, to) = match known {
            Some((_, to)) => (true, Some(to.clone())),
            None => match self.history.event(notice.0)? {
                Some(Event::Notified { agent, .. }) => (false, Some(agent)),
                _ => (false, None),
            },
        };
        if to.is_none() {
            return Err(Refusal::no_such("notice", notice.0).into());
        }
        if to.as_deref() != Some(agent) {
            let what = format!("notice to agent {agent:?} with the id");
            return Err(Refusal::no_such(&what, notice.0).into());
        }
        if waits {
            self.emit(Event::NoticeAcknowledged { notice });
        }
        Ok(Reply::Nothing)
    }

    /// The time to acknowledge is over. Who has not is named to a person, as loud as the BREAK is bad.
    pub(super) fn escalate_break(&mut self, signal: BreakId) {
        let Some(known) = self.state.breaks.known.get(&signal) else { return };
        let notices = known.waiting.iter().filter_map(|id| self.state.breaks.notices.get(id));
        let mut silent: Vec<String> = notices.map(|(_, agent)| format!("{agent:?}")).collect();
        let more = silent.len().saturating_sub(NAMED);
        silent.truncate(NAMED);
        let loud = match known.signal.severity {
            BreakSeverity::Transient => Severity::Warning,
            BreakSeverity::Permanent | BreakSeverity::Catastrophic => Severity::Critical,
        };
        let others = if more > 0 { format!(" and {more} more") } else { String::new() };
        let branch = self.state.branches.get(&known.signal.branch);
        let branch = branch
            .map_or_else(|| known.signal.branch.to_string(), |branch| format!("{:?}", branch.name));
        let text = format!(
            "BREAK {signal} of branch {branch} ({}) is not acknowledged by {}{others}; make sure that they stopped, and acknowledge for them",
            known.signal.severity.name(),
            silent.join(", "),
        );
        self.emit(Event::BreakUnheard { signal });
        self.alert(loud, text, signal.0);
    }

    /// Agents that broke and have nothing left to undo have confirmed: those upstream may go on.
    pub(super) fn confirm_breaks(&mut self) {
        let open: Vec<BreakId> = self.state.breaks.ordering().map(|(id, _)| id).collect();
        for signal in open {
            let Some(known) = self.state.breaks.known.get(&signal) else { continue };
            let agent = known.signal.agent.as_str();
            if known.left.is_some_and(|step| self.state.is_left_of(step, agent)) {
                continue;
            }
            let left = self.state.left_to_confirm(signal, &known.signal);
            if left.is_none() {
                self.emit(Event::BreakConfirmed { signal });
            } else if let Some(known) = self.state.breaks.known.get_mut(&signal) {
                known.left = left;
            }
        }
    }
}

fn upstream_of(agent: &str, named: &[String]) -> Ruling<Vec<String>> {
    let wrong = if named.len() > UPSTREAM {
        Some(format!("at most {UPSTREAM} agents"))
    } else if named.iter().any(|name| name == agent) {
        Some(format!("{agent:?} broke and cannot wait for itself"))
    } else {
        None
    };
    if let Some(reason) = wrong {
        return Err(Refusal::Options { option: "upstream", reason }.into());
    }
    let named: BTreeSet<String> = named.iter().cloned().collect();
    Ok(named.into_iter().collect())
}
