//! Reports that come too late or from a stale holder: they decide nothing, but they are evidence of
//! what the world shows (C27 to C31, C51).

use std::collections::BTreeSet;

use super::story::Story;
use super::{Fate, Ruling, Turn};
use crate::model::{
    BranchId, BranchState, EffectId, EffectState, Event, Inverse, Outcome, PayloadRef, Problem,
    Severity, Trigger,
};

/// What a late report says.
struct Late<'a> {
    effect: EffectId,
    result: Option<PayloadRef>,
    inverse: Option<&'a Inverse>,
}

impl Turn<'_> {
    /// Takes a report that is refused for what it is worth. A late or stale `not_run` proves nothing:
    /// another holder may have run the call since.
    pub(super) fn late_report(
        &mut self,
        effect: EffectId,
        outcome: Outcome,
        result: Option<PayloadRef>,
        inverse: Option<&Inverse>,
        _problem: Option<&Problem>,
    ) -> Ruling<()> {
        let late = Late { effect, result, inverse };
        let Some(known) = self.state.effects.get(effect) else {
            return if outcome == Outcome::Done { self.late_on_settled(&late) } else { Ok(()) };
        };
        let (told, evidence) = (known.outcome, known.evidence);
        match (known.state, outcome) {
            (EffectState::Doomed, Outcome::Done) if told != Outcome::Done => {
                self.late_on_doomed(&late, &[]);
            }
            (EffectState::Live | EffectState::Committed, Outcome::Done)
                if told == Outcome::Unknown && !evidence =>
            {
                self.emit_evidence(&late);
            }
            _ => {}
        }
        Ok(())
    }

    fn emit_evidence(&mut self, late: &Late<'_>) {
        self.emit(Event::Evidence {
            effect: late.effect,
            outcome: Outcome::Done,
            result: late.result,
            inverse: late.inverse.cloned(),
            problem: None,
        });
    }

    /// The late call ran: its inverse is due under a new key, and so are those of earlier doomed
    /// writers that were finished while it may have been on its way (C28).
    fn late_on_doomed(&mut self, late: &Late<'_>, committed: &[EffectId]) {
        let id = late.effect;
        self.emit_evidence(late);
        self.emit(Event::StepDue { effect: id, cause: id });
        self.put_back(id, id.0);
        let names: Vec<String> = committed.iter().map(ToString::to_string).collect();
        let more = if names.is_empty() {
            String::new()
        } else {
            format!("; committed effects rest on it: {}", names.join(", "))
        };
        let text = format!(
            "effect {id} ran although it was decided against; its inverse is due again{more}"
        );
        self.alert(Severity::Critical, text, id.0);
    }

    fn late_on_settled(&mut self, late: &Late<'_>) -> Ruling<()> {
        let id = late.effect;
        let void = match self.history.fate(id)? {
            Some(Fate::Doomed | Fate::Compensated) => false,
            Some(Fate::Void) => true,
            Some(Fate::Committed) | None => return Ok(()),
        };
        let Some(story) = self.story(id)? else { return Ok(()) };
        if story.outcome == Outcome::Done {
            return Ok(());
        }
        if !void && story.rollback.is_none() {
            // Nothing of that decision had run, so no rollback exists that could take a step.
            self.emit_evidence(late);
            let text = format!(
                "effect {id} ran although it was decided against before anything ran; undo it by hand"
            );
            self.alert(Severity::Critical, text, id.0);
            return Ok(());
        }
        let mut again = self.finished_since(id, &story.registered, id.0)?;
        let committed = if void { self.committed_readers(&story)? } else { Vec::new() };
        again.push(story);
        self.recall(again)?;
        if void {
            self.doom_ran_after_all(id);
        }
        self.late_on_doomed(late, &committed);
        Ok(())
    }

    fn committed_readers(&self, story: &Story) -> Ruling<Vec<EffectId>> {
        let mut committed = Vec::new();
        for reader in &story.readers {
            let decided = match self.state.effects.get(*reader) {
                Some(effect) => effect.shown_state() == EffectState::Committed,
                None => self.history.fate(*reader)? == Some(Fate::Committed),
            };
            if decided {
                committed.push(*reader);
            }
        }
        Ok(committed)
    }

    /// What was void ran: it falls, and so does whatever is live and may have seen it (C31).
    fn doom_ran_after_all(&mut self, id: EffectId) {
        let mut fall: Vec<EffectId> = self
            .state
            .effects
            .iter()
            .filter(|effect| effect.is_live())
            .filter(|effect| effect.voids.contains(&id) || effect.named.contains(&id))
            .map(|effect| effect.id)
            .collect();
        fall.push(id);
        let reason = format!("effect {id} was reported as not run, and ran");
        self.doom(&fall, &[], None, &reason, Trigger::Automatic);
        let saw: Vec<BranchId> = self
            .state
            .branches
            .values()
            .filter(|branch| branch.state == BranchState::Open && branch.voids.contains(&id))
            .map(|branch| branch.id)
            .collect();
        for branch in saw {
            self.emit(Event::BranchStopped {
                branch,
                cause: Some(id),
                closed: false,
                by: None,
                reason: Some(reason.clone()),
            });
        }
    }

    /// Inverses of earlier doomed writers of the effect's keys that finished after `since` are due
    /// again: what ran now may have put their values back.
    pub(super) fn put_back(&mut self, id: EffectId, since: u64) {
        let known = self.state.effects.get(id).filter(|effect| effect.is_undone_writer());
        let Some(effect) = known else { return };
        let mut again = BTreeSet::new();
        for entry in effect.writes.iter().filter_map(|key| self.state.keys.get(key)) {
            for earlier in entry.writers.iter().filter_map(|id| self.state.effects.get(*id)) {
                let finished = earlier
                    .step
                    .as_ref()
                    .is_some_and(|step| step.is_completed() && step.completed_at > since);
                if finished && earlier.is_undone_writer() && earlier.position < effect.position {
                    again.insert(earlier.id);
                }
            }
        }
        for earlier in again {
            self.emit(Event::StepDue { effect: earlier, cause: id });
        }
    }

    /// The same for writers that memory has let go: what let them go took it that no later undo could
    /// put their values back, and this effect came back since.
    pub(super) fn put_back_settled(&mut self, id: EffectId) -> Ruling<()> {
        if !self.state.effects.get(id).is_some_and(crate::state::Effect::was_recalled) {
            return Ok(());
        }
        let Some(Event::Registered(registered)) = self.history.event(id.0)? else { return Ok(()) };
        let again = self.finished_since(id, &registered, id.0)?;
        let due: Vec<EffectId> = again.iter().map(|story| story.effect).collect();
        self.recall(again)?;
        for earlier in due {
            self.emit(Event::StepDue { effect: earlier, cause: id });
        }
        Ok(())
    }

    /// The outcome of a lost claim came: its inverse ran at some moment since that claim (C51).
    pub(super) fn evidence_of_claim(&mut self, id: EffectId, claim: u64) -> Ruling<()> {
        if self.state.effects.contains(id) {
            self.put_back(id, claim);
            return Ok(());
        }
        let Some(Event::Registered(registered)) = self.history.event(id.0)? else { return Ok(()) };
        let again = self.finished_since(id, &registered, claim)?;
        let mut due: BTreeSet<EffectId> = again.iter().map(|story| story.effect).collect();
        for key in &registered.call.writes {
            let Some(entry) = self.state.keys.get(key) else { continue };
            for earlier in entry.writers.iter().filter_map(|id| self.state.effects.get(*id)) {
                let finished = earlier
                    .step
                    .as_ref()
                    .is_some_and(|step| step.is_completed() && step.completed_at > claim);
                if finished && earlier.is_undone_writer() && earlier.id < id {
                    due.insert(earlier.id);
                }
            }
        }
        self.recall(again)?;
        for earlier in due {
            self.emit(Event::StepDue { effect: earlier, cause: id });
        }
        Ok(())
    }
}
