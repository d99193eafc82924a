//! What is owed after a rollback: its root cause and a remedy (section 7, Afterwards).

use std::collections::BTreeSet;

use super::{Ruling, Turn};
use crate::model::{
    CauseKind, Class, Command, EffectId, Event, Refusal, Reply, RollbackId, RootCause, Severity,
};

impl Turn<'_> {
    /// Rollbacks as a process: what a person asks for, and what is owed afterwards.
    pub(super) fn govern(&mut self, command: &Command) -> Ruling<Reply> {
        match command {
            Command::RequestRollback { targets, by, reason, trigger, program_order } => {
                return self.request_rollback(targets, by, reason, *trigger, *program_order);
            }
            Command::RecordRootCause { rollback, category, note, by, remedy } => {
                self.root_cause(*rollback, *category, note, by, remedy.as_deref())?;
            }
            Command::WaiveRemedy { rollback, by, reason } => {
                self.waive_remedy(*rollback, by, reason)?;
            }
            _ => {}
        }
        Ok(Reply::Nothing)
    }

    fn root_cause(
        &mut self,
        rollback: RollbackId,
        category: CauseKind,
        note: &str,
        by: &str,
        remedy: Option<&str>,
    ) -> Ruling<()> {
        let members = self.owing(rollback)?;
        let cause = RootCause {
            rollback,
            category,
            note: note.to_owned(),
            by: by.to_owned(),
            remedy: remedy.map(str::to_owned),
            agents: self.agents_of(&members)?,
        };
        let earlier =
            self.state.causes.values().rev().find(|known| cause.repeats(known)).map(|k| k.rollback);
        self.emit(Event::RootCauseRecorded(Box::new(cause)));
        if let Some(earlier) = earlier {
            let text = format!(
                "rollback {rollback} has the same root cause ({}) as rollback {earlier}: the remedy of the first did not hold",
                category.name()
            );
            self.alert(Severity::Warning, text, rollback.0);
        }
        Ok(())
    }

    fn waive_remedy(&mut self, rollback: RollbackId, by: &str, reason: &str) -> Ruling<()> {
        self.owing(rollback)?;
        let (by, reason) = (by.to_owned(), reason.to_owned());
        self.emit(Event::RemedyWaived { rollback, by, reason });
        Ok(())
    }

    /// The members of a rollback of which something is owed. It costs a scan from the rollback on,
    /// which only a person's words about it pay.
    fn owing(&self, id: RollbackId) -> Ruling<Vec<EffectId>> {
        let mut members = match self.history.event(id.0)? {
            Some(Event::Doomed(doom)) if doom.rollback => doom.members.iter().collect(),
            Some(Event::RollbackRequested(request)) if request.of.is_none() => request.members(),
            _ => return Err(Refusal::no_such("rollback", id.0).into()),
        };
        let (mut finished, mut cause, mut remedy) = (false, false, false);
        self.history.scan(id.0 + 1, &mut |_, event| {
            match event {
                Event::RollbackFinished { rollback, .. } if *rollback == id => finished = true,
                Event::RootCauseRecorded(known) if known.rollback == id => {
                    cause = true;
                    remedy |= known.remedy.is_some();
                }
                Event::RemedyWaived { rollback, .. } if *rollback == id => remedy = true,
                Event::RollbackRequested(request) if request.of == Some(id) => {
                    members = request.members();
                }
                _ => {}
            }
            true
        })?;
        if finished && cause && remedy {
            return Err(Refusal::AlreadySettled { reference: id.0, state: "closed" }.into());
        }
        Ok(members)
    }

    fn agents_of(&self, members: &[EffectId]) -> Ruling<Vec<String>> {
        let mut branches = BTreeSet::new();
        for id in members {
            match self.state.effects.get(*id) {
                Some(effect) => {
                    branches.insert(effect.branch);
                }
                None => {
                    if let Some(Event::Registered(registered)) = self.history.event(id.0)? {
                        branches.insert(registered.branch);
                    }
                }
            }
        }
        let mut agents = BTreeSet::new();
        for branch in branches {
            if let Some(Event::BranchCreated { agent, .. }) = self.history.event(branch.0)? {
                agents.insert(agent);
            }
        }
        Ok(agents.into_iter().collect())
    }

    /// A rollback of fully reversible effects should be done within the hour.
    pub(super) fn overdue(&mut self, id: RollbackId) {
        let Some(rollback) = self.state.rollbacks.get(&id).filter(|known| known.open) else {
            return;
        };
        let full =
            rollback.members.iter().filter_map(|id| self.state.effects.get(*id)).all(|known| {
                let idle = known.step.as_ref().is_none_or(|step| step.is_discarded());
                idle || (known.class == Class::Full && known.inverse.is_some())
            });
        self.emit(Event::RollbackOverdue { rollback: id });
        if full {
            let text = format!(
                "rollback {id} can be undone in full and is open for more than an hour; approve it, run its steps or resolve them"
            );
            self.alert(Severity::Warning, text, id.0);
        }
    }
}
