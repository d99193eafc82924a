//! Pairs of artifacts: what memory holds of those that may still change, and the one fold that it
//! shares with looks at the log.

use std::collections::BTreeMap;

use super::Rollback;
use crate::model::{
    Artifact, ArtifactFailure, ArtifactId, ArtifactMove, ArtifactPair, ArtifactRun, ArtifactState,
    Class, EffectId, Event, RunOutcome,
};

/// A pair, and the records that say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paired {
    /// What is known of it.
    pub info: ArtifactPair,
    /// Its records, ascending; the first two create it.
    pub records: Vec<u64>,
}

/// The pairs in memory. One that can change no more leaves it: completed, withdrawn, failed without a
/// run, or with its run's rollback.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Artifacts {
    pairs: BTreeMap<ArtifactId, Paired>,
    /// The pair whose compensation runs as the step of an effect.
    runs: BTreeMap<EffectId, ArtifactId>,
    /// A primary whose compensation is in the record to come.
    half: Option<(Artifact, String)>,
}

impl Artifacts {
    /// The pair of this primary.
    pub fn get(&self, id: ArtifactId) -> Option<&Paired> {
        self.pairs.get(&id)
    }

    /// The pair whose compensation runs as this effect's step.
    pub fn of_run(&self, run: EffectId) -> Option<&Paired> {
        self.pairs.get(self.runs.get(&run)?)
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Records that memory needs for them.
    pub(super) fn records(&self) -> impl Iterator<Item = u64> {
        let half = self.half.iter().map(|(primary, _)| primary.id.0);
        self.pairs.values().flat_map(|pair| pair.records.iter().copied()).chain(half)
    }

    /// The class of the compensation that a rollback runs, where it runs one.
    pub(super) fn class_of_run(&self, rollback: &Rollback) -> Option<Class> {
        if self.runs.is_empty() {
            return None;
        }
        let [run] = rollback.members[..] else { return None };
        Some(self.of_run(run)?.info.compensation.spec.class)
    }

    /// The rollback of these effects has left memory, and takes the pair whose run it was along.
    pub(super) fn run_ended(&mut self, members: &[EffectId]) {
        if self.runs.is_empty() {
            return;
        }
        for member in members {
            if let Some(pair) = self.runs.remove(member) {
                self.pairs.remove(&pair);
            }
        }
    }

    /// Folds an event about artifacts. What memory does not hold is settled and passed over.
    pub fn fold(&mut self, seq: u64, now_ms: u64, event: &Event) {
        let id = match event {
            Event::ArtifactCreated { .. } => return self.created(seq, event),
            Event::ArtifactMoved { artifact, .. }
            | Event::ArtifactFailed { artifact, .. }
            | Event::ArtifactRan { artifact, .. } => *artifact,
            _ => return,
        };
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        pair.info.fold(seq, now_ms, event);
        pair.records.push(seq);
        let run = pair.info.run.as_ref().map(|run| run.id);
        if let Some(run) = run {
            self.runs.insert(run, id);
        } else if pair.info.is_settled() {
            self.pairs.remove(&id);
        }
    }

    fn created(&mut self, seq: u64, event: &Event) {
        let Event::ArtifactCreated { spec, compensates_for, by, .. } = event else { return };
        let made = Artifact {
            id: ArtifactId(seq),
            spec: spec.as_ref().clone(),
            state: ArtifactState::Draft,
            compensates_for: *compensates_for,
        };
        let Some(primary) = *compensates_for else {
            self.half = Some((made, by.clone()));
            return;
        };
        let Some((half, created_by)) = self.half.take().filter(|(half, _)| half.id == primary)
        else {
            return;
        };
        let info = ArtifactPair {
            primary: half,
            compensation: made,
            created_by,
            moves: Vec::new(),
            failure: None,
            run: None,
        };
        self.pairs.insert(primary, Paired { info, records: vec![primary.0, seq] });
    }
}

/// A pair as its records tell it, each with its number and its moment; for pairs that memory has let
/// go, too. `None` where the records create no pair.
pub fn pair_of(records: impl IntoIterator<Item = (u64, u64, Event)>) -> Option<ArtifactPair> {
    let mut artifacts = Artifacts::default();
    let mut records = records.into_iter();
    for (seq, now_ms, event) in records.by_ref().take(2) {
        artifacts.fold(seq, now_ms, &event);
    }
    let (_, pair) = artifacts.pairs.pop_first()?;
    let mut info = pair.info;
    for (seq, now_ms, event) in records {
        info.fold(seq, now_ms, &event);
    }
    Some(info)
}

/// The pair that an event creates, continues, or is about.
pub fn pair_named(seq: u64, event: &Event) -> Option<ArtifactId> {
    match event {
        Event::ArtifactCreated { compensates_for, .. } => {
            Some(compensates_for.unwrap_or(ArtifactId(seq)))
        }
        Event::ArtifactMoved { artifact, .. }
        | Event::ArtifactFailed { artifact, .. }
        | Event::ArtifactRan { artifact, .. } => Some(*artifact),
        _ => None,
    }
}

impl ArtifactPair {
    /// No event can change it, but for those of a run that memory holds with its rollback.
    fn is_settled(&self) -> bool {
        use ArtifactState::{Completed, Rejected, Uncompensated};
        matches!(self.primary.state, Completed | Rejected | Uncompensated)
    }

    fn fold(&mut self, seq: u64, now_ms: u64, event: &Event) {
        let (state, by, reason) = match event {
            Event::ArtifactMoved { state, by, reason, .. } => {
                (*state, Some(by.clone()), reason.clone())
            }
            Event::ArtifactFailed { by, reason, run_id, run, rollback, .. } => {
                self.failure = Some(ArtifactFailure {
                    reason: reason.clone(),
                    run_id: run_id.clone(),
                    by: by.clone(),
                });
                self.run = (*run).zip(*rollback).map(|(id, rollback)| ArtifactRun {
                    id,
                    rollback,
                    artifact: self.compensation.id,
                    compensating_for: self.primary.id,
                    sha256: self.compensation.spec.sha256,
                    approved_by: self.approver(),
                    outcome: None,
                });
                let state = if run.is_some() {
                    ArtifactState::Failed
                } else {
                    ArtifactState::Uncompensated
                };
                (state, Some(by.clone()), Some(reason.clone()))
            }
            Event::ArtifactRan { state, kind, attempts, by, .. } => {
                if let Some(run) = self.run.as_mut() {
                    run.outcome = (*state != ArtifactState::Failed).then(|| RunOutcome {
                        completed: *state == ArtifactState::Compensated,
                        kind: *kind,
                        attempts: *attempts,
                        by: by.clone(),
                        ended_ms: now_ms,
                    });
                }
                (*state, by.clone(), None)
            }
            _ => return,
        };
        self.primary.state = state;
        self.compensation.state =
            state.of_compensation(self.run.is_some(), self.compensation.state);
        self.moves.push(ArtifactMove { record: seq, time_ms: now_ms, state, by, reason });
    }

    /// Who approved both.
    pub fn approver(&self) -> Option<String> {
        self.brought_into(ArtifactState::Approved).and_then(|moved| moved.by.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ArtifactSpec;

    fn spec(name: &str) -> Box<ArtifactSpec> {
        Box::new(ArtifactSpec {
            artifact_type: "script".into(),
            name: name.into(),
            sha256: [1; 32],
            content: None,
            content_ref: Some("here".into()),
            class: Class::Full,
            agent: None,
        })
    }

    fn moved(state: ArtifactState) -> Event {
        Event::ArtifactMoved { artifact: ArtifactId(1), state, by: "ana".into(), reason: None }
    }

    fn created() -> Artifacts {
        let mut artifacts = Artifacts::default();
        let by = "ana".to_owned();
        let event = Event::ArtifactCreated {
            spec: spec("a"),
            compensates_for: None,
            by: by.clone(),
            idempotency_key: None,
        };
        artifacts.fold(1, 0, &event);
        assert_eq!(artifacts.records().collect::<Vec<_>>(), [1]);
        let compensates_for = Some(ArtifactId(1));
        let spec = spec("b");
        let event = Event::ArtifactCreated { spec, compensates_for, by, idempotency_key: None };
        artifacts.fold(2, 0, &event);
        artifacts
    }

    #[test]
    fn i19_a_pair_that_is_settled_leaves_memory() {
        for end in [ArtifactState::Completed, ArtifactState::Rejected] {
            let mut artifacts = created();
            artifacts.fold(3, 0, &moved(ArtifactState::InReview));
            assert_eq!(artifacts.records().collect::<Vec<_>>(), [1, 2, 3]);
            artifacts.fold(4, 0, &moved(end));
            assert!(artifacts.is_empty(), "{end:?}");
            assert_eq!(artifacts.records().count(), 0);
        }
    }

    #[test]
    fn an_event_about_a_pair_that_memory_does_not_hold_is_passed_over() {
        let mut artifacts = created();
        let mut other = moved(ArtifactState::InReview);
        if let Event::ArtifactMoved { artifact, .. } = &mut other {
            *artifact = ArtifactId(9);
        }
        artifacts.fold(3, 0, &other);
        assert_eq!(artifacts, created());
    }
}
