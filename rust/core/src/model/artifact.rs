//! Executable artifacts and the compensations that are paired with them (RFC-012, section 8).

use minicbor::{Decode, Encode};

use super::{ArtifactId, Class, EffectId, FailureKind, PayloadRef, RollbackId};

/// How far an artifact is.
///
/// ```
/// use effectstore::model::ArtifactState;
/// assert!(ArtifactState::Draft.may_become(ArtifactState::InReview));
/// assert!(!ArtifactState::Draft.may_become(ArtifactState::Promoted));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum ArtifactState {
    /// Created; nobody was asked to review it.
    #[default]
    #[n(0)]
    Draft,
    /// Submitted; a person is to approve it.
    #[n(1)]
    InReview,
    /// A person approved it, and its compensation with it.
    #[n(2)]
    Approved,
    /// Active: it may be executed.
    #[n(3)]
    Promoted,
    /// Being executed; of a compensation: its run is due or under way.
    #[n(4)]
    Executing,
    /// Executed.
    #[n(5)]
    Completed,
    /// Failed; the run of its compensation is due or under way.
    #[n(6)]
    Failed,
    /// Failed, and compensated.
    #[n(7)]
    Compensated,
    /// Failed and not compensated: a person must act.
    #[n(8)]
    Uncompensated,
    /// Turned down or withdrawn before it was executed.
    #[n(9)]
    Rejected,
}

use ArtifactState::{
    Approved, Compensated, Completed, Draft, Executing, Failed, InReview, Promoted, Rejected,
    Uncompensated,
};

/// Every way in which the primary of a pair may change its state; there is no other. Its
/// compensation goes along, see [`ArtifactState::of_compensation`].
pub const ARTIFACT_TRANSITIONS: &[(ArtifactState, ArtifactState)] = &[
    (Draft, InReview),
    (InReview, Approved),
    (Approved, Promoted),
    (Promoted, Executing),
    (Executing, Completed),
    // Withdrawn before it ran.
    (Draft, Rejected),
    (InReview, Rejected),
    (Approved, Rejected),
    (Promoted, Rejected),
    // It failed and its compensation is approved: the run is due.
    (Approved, Failed),
    (Promoted, Failed),
    (Executing, Failed),
    // It failed and its compensation is not approved: alert and halt.
    (Draft, Uncompensated),
    (InReview, Uncompensated),
    // How the run ended, and that it is due once more.
    (Failed, Compensated),
    (Failed, Uncompensated),
    (Uncompensated, Compensated),
    (Uncompensated, Failed),
    (Compensated, Failed),
];

impl ArtifactState {
    /// Every state, in the order of the log's numbers.
    pub const ALL: [ArtifactState; 10] = [
        Draft,
        InReview,
        Approved,
        Promoted,
        Executing,
        Completed,
        Failed,
        Compensated,
        Uncompensated,
        Rejected,
    ];

    /// Whether the table knows the way from this state to another.
    pub fn may_become(self, next: ArtifactState) -> bool {
        ARTIFACT_TRANSITIONS.contains(&(self, next))
    }

    /// It was reviewed and approved, so that what it holds may be executed.
    pub fn is_approved(self) -> bool {
        matches!(self, Approved | Promoted | Executing)
    }

    /// It has failed, whatever became of its compensation.
    pub fn has_failed(self) -> bool {
        matches!(self, Failed | Compensated | Uncompensated)
    }

    /// The state of a compensation once its primary is in this state. `run` says whether there is or
    /// was a run, `before` is the compensation's state until now.
    #[must_use]
    pub fn of_compensation(self, run: bool, before: ArtifactState) -> ArtifactState {
        match self {
            Draft | InReview | Approved | Promoted | Rejected => self,
            Failed => Executing,
            Compensated => Completed,
            Uncompensated if run => Failed,
            // It waits while its primary runs, and is not run once that is done.
            Executing | Completed | Uncompensated => before,
        }
    }

    /// The state's name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            Draft => "draft",
            InReview => "in_review",
            Approved => "approved",
            Promoted => "promoted",
            Executing => "executing",
            Completed => "completed",
            Failed => "failed",
            Compensated => "failed_compensated",
            Uncompensated => "failed_uncompensated",
            Rejected => "rejected",
        }
    }
}

/// An artifact as its creator hands it over. Its content is held by the store or elsewhere, and named
/// by its SHA-256 in either case.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct ArtifactSpec {
    /// What it is, such as `PYTHON_SCRIPT`: the name of the handler that runs it.
    #[n(0)]
    pub artifact_type: String,
    /// Its name, for people; names need not differ.
    #[n(1)]
    pub name: String,
    /// SHA-256 of its content.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub sha256: [u8; 32],
    /// Its content, where the store holds it.
    #[n(3)]
    pub content: Option<PayloadRef>,
    /// Where its content is held elsewhere, in words that the caller understands.
    #[n(4)]
    pub content_ref: Option<String>,
    /// How far its execution can be undone. Of a compensation: an irreversible one runs only under an
    /// approval of its own.
    #[n(5)]
    pub class: Class,
    /// Who may run it; absent, anyone.
    #[n(6)]
    pub agent: Option<String>,
}

/// A change of a pair's state, as it was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactMove {
    /// The record that says so.
    pub record: u64,
    /// When, in milliseconds of the store's clock.
    pub time_ms: u64,
    /// The primary's state from then on.
    pub state: ArtifactState,
    /// Who did it; absent where the store did.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

/// Why a primary failed, as it was reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactFailure {
    /// What went wrong, shortened like every error text.
    pub reason: String,
    /// The failed run, as its caller named it, or the number of the record that started it.
    pub run_id: Option<String>,
    /// Who reported it.
    pub by: String,
}

/// The run of a compensation: its execution record, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactRun {
    /// The run's id: the effect that it undoes. Its step goes by the same.
    pub id: EffectId,
    /// The rollback that holds the step.
    pub rollback: RollbackId,
    /// The compensation that runs.
    pub artifact: ArtifactId,
    /// The primary that it compensates for.
    pub compensating_for: ArtifactId,
    /// SHA-256 of the content that runs.
    pub sha256: [u8; 32],
    /// Who approved the pair, and with it this run.
    pub approved_by: Option<String>,
    /// How it ended; absent while it is due or under way.
    pub outcome: Option<RunOutcome>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// Whether the compensation ran, or a person did its work.
    pub completed: bool,
    /// Why it failed.
    pub kind: Option<FailureKind>,
    /// Attempts begun in the last generation.
    pub attempts: u32,
    /// The agent that ran it, or the person that resolved it.
    pub by: Option<String>,
    /// When it ended, in milliseconds of the store's clock.
    pub ended_ms: u64,
}

/// One artifact of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Its id.
    pub id: ArtifactId,
    /// What was handed over.
    pub spec: ArtifactSpec,
    /// How far it is.
    pub state: ArtifactState,
    /// The primary, where this is a compensation.
    pub compensates_for: Option<ArtifactId>,
}

/// An executable artifact with its compensation: created, reviewed, approved and promoted as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactPair {
    /// What is to be executed. Its state is the pair's.
    pub primary: Artifact,
    /// What undoes a failed execution.
    pub compensation: Artifact,
    /// Who created them.
    pub created_by: String,
    /// Every change of state since, oldest first.
    pub moves: Vec<ArtifactMove>,
    /// Why the primary failed.
    pub failure: Option<ArtifactFailure>,
    /// The compensation's run, once there is one.
    pub run: Option<ArtifactRun>,
}

impl ArtifactPair {
    /// Who last brought the pair into a state.
    pub fn brought_into(&self, state: ArtifactState) -> Option<&ArtifactMove> {
        self.moves.iter().rev().find(|moved| moved.state == state)
    }

    /// Whether a person has approved both.
    pub fn was_approved(&self) -> bool {
        self.brought_into(Approved).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_ended_well_or_was_withdrawn_changes_no_more() {
        for end in [Completed, Rejected] {
            assert!(ArtifactState::ALL.iter().all(|next| !end.may_become(*next)), "{end:?}");
        }
    }

    #[test]
    fn every_state_is_reached_and_none_twice_in_the_table() {
        for state in ArtifactState::ALL.iter().filter(|state| **state != Draft) {
            assert!(ARTIFACT_TRANSITIONS.iter().any(|(_, next)| next == state), "{state:?}");
        }
        for (place, way) in ARTIFACT_TRANSITIONS.iter().enumerate() {
            assert!(!ARTIFACT_TRANSITIONS[..place].contains(way), "{way:?}");
        }
    }

    #[test]
    fn rule_2_and_3_the_compensation_is_reviewed_approved_and_promoted_with_its_primary() {
        for state in [InReview, Approved, Promoted, Rejected] {
            assert_eq!(state.of_compensation(false, Draft), state);
        }
    }
}
