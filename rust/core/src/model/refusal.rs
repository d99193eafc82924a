//! Refusals: a rule said no, and nothing changed beyond an audit record.

use super::{ApprovalId, ArtifactId, Decision, EffectId, Key, RollbackId, Token};

/// Why a command was refused. The codes are the same in Rust, Python, C and on the command line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are the attributes of the errors, named in the API's table.
pub enum Refusal {
    FenceClosure {
        decision: Box<Decision>,
        rollback: Option<RollbackId>,
    },
    ReconcileConflict {
        path: Vec<EffectId>,
    },
    StaleToken {
        branch: String,
        held: Option<Token>,
        current: Option<Token>,
    },
    DoomedBranch {
        branch: String,
        cause: Option<EffectId>,
    },
    BranchClosed {
        branch: String,
        cause: Option<EffectId>,
    },
    DoomedDependency {
        dependency: EffectId,
        key: Option<Key>,
    },
    BranchExists {
        branch: String,
    },
    InverseRequired {
        tool: String,
    },
    CompensationScope {
        branch: String,
        rollback: RollbackId,
    },
    UncommittedKey {
        key: Key,
        writers: Vec<EffectId>,
    },
    DirtyKey {
        key: Key,
        writers: Vec<EffectId>,
        rollback: Option<RollbackId>,
    },
    KeyBusy {
        key: Key,
        writers: Vec<EffectId>,
    },
    IdempotencyConflict {
        effect: EffectId,
        differs: &'static str,
    },
    AlreadySettled {
        reference: u64,
        state: &'static str,
    },
    /// It falls already: an unfinished rollback holds it.
    HeldByRollback {
        effect: EffectId,
        state: &'static str,
        rollback: RollbackId,
    },
    IrreversibleBeforeFence {
        tool: String,
    },
    ApprovalRequired {
        tool: String,
        approval: ApprovalId,
    },
    ApprovalClosed {
        approval: ApprovalId,
        state: &'static str,
        successor: Option<ApprovalId>,
    },
    SeparationOfDuties {
        approval: ApprovalId,
        by: String,
    },
    ReasonRequired {
        approval: ApprovalId,
        by: String,
    },
    /// Whoever made or submitted a pair of artifacts may not approve it.
    ArtifactDuties {
        artifact: ArtifactId,
        by: String,
    },
    /// The approval of a pair of artifacts needs a written reason.
    ArtifactReasonRequired {
        artifact: ArtifactId,
        by: String,
    },
    LimitExceeded {
        limit: &'static str,
        value: u64,
        allowed: u64,
        wait_for: Vec<EffectId>,
    },
    Frozen {
        by: String,
        reason: String,
    },
    LeaseLost {
        step: EffectId,
        holder: Option<String>,
    },
    NotFound {
        /// What was looked for, as messages say it.
        reference: String,
        /// What was given for it.
        name: Name,
    },
    CommitReserved {
        target: Name,
    },
    ArtifactState {
        artifact: ArtifactId,
        state: &'static str,
        /// What would have to be otherwise, as messages say it.
        hint: String,
    },
    ContentMismatch {
        artifact: ArtifactId,
    },
    /// What the caller asked for makes no sense, whatever the store holds.
    Options {
        option: &'static str,
        reason: String,
    },
}

/// What a caller gave to name something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// An id.
    Id(u64),
    /// The name of a branch, or of nothing.
    Text(String),
}

impl Refusal {
    /// The refusal of an id that names nothing; `what` is the noun.
    ///
    /// ```
    /// use effectstore::model::Refusal;
    /// assert_eq!(Refusal::no_such("effect", 7).to_string(), "there is no effect 7");
    /// ```
    pub fn no_such(what: &str, id: u64) -> Self {
        Refusal::NotFound { reference: format!("{what} {id}"), name: Name::Id(id) }
    }

    /// The refusal of a branch name that nobody took.
    ///
    /// ```
    /// use effectstore::model::Refusal;
    /// assert_eq!(Refusal::no_such_branch("a").to_string(), "there is no branch \"a\"");
    /// ```
    pub fn no_such_branch(name: &str) -> Self {
        let reference = format!("branch {name:?}");
        Refusal::NotFound { reference, name: Name::Text(name.to_owned()) }
    }

    /// The stable code.
    ///
    /// ```
    /// use effectstore::model::Refusal;
    /// assert_eq!(Refusal::InverseRequired { tool: "t".into() }.code(), "inverse_required");
    /// ```
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::FenceClosure { .. } => "fence_closure",
            Refusal::ReconcileConflict { .. } => "reconcile_conflict",
            Refusal::StaleToken { .. } => "stale_token",
            Refusal::DoomedBranch { .. } => "doomed_branch",
            Refusal::BranchClosed { .. } => "branch_closed",
            Refusal::DoomedDependency { .. } => "doomed_dependency",
            Refusal::BranchExists { .. } => "branch_exists",
            Refusal::InverseRequired { .. } => "inverse_required",
            Refusal::CompensationScope { .. } => "compensation_scope",
            Refusal::UncommittedKey { .. } => "uncommitted_key",
            Refusal::DirtyKey { .. } => "dirty_key",
            Refusal::KeyBusy { .. } => "key_busy",
            Refusal::IdempotencyConflict { .. } => "idempotency_conflict",
            Refusal::AlreadySettled { .. } | Refusal::HeldByRollback { .. } => "already_settled",
            Refusal::IrreversibleBeforeFence { .. } => "irreversible_before_fence",
            Refusal::ApprovalRequired { .. } => "approval_required",
            Refusal::ApprovalClosed { .. } => "approval_closed",
            Refusal::SeparationOfDuties { .. } | Refusal::ArtifactDuties { .. } => {
                "separation_of_duties"
            }
            Refusal::ReasonRequired { .. } | Refusal::ArtifactReasonRequired { .. } => {
                "reason_required"
            }
            Refusal::LimitExceeded { .. } => "limit_exceeded",
            Refusal::Frozen { .. } => "frozen",
            Refusal::LeaseLost { .. } => "lease_lost",
            Refusal::NotFound { .. } => "not_found",
            Refusal::CommitReserved { .. } => "commit_reserved",
            Refusal::ArtifactState { .. } => "artifact_state",
            Refusal::ContentMismatch { .. } => "content_mismatch",
            Refusal::Options { .. } => "options",
        }
    }
}

fn ids(list: &[EffectId]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = list.iter().take(SHOWN).map(ToString::to_string).collect();
    if list.len() > SHOWN {
        text.push(format!("and {} more", list.len() - SHOWN));
    }
    text.join(", ")
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::FenceClosure { decision, rollback } => match (decision.cause, rollback) {
                (Some(cause), Some(rollback)) => write!(
                    f,
                    "already decided: aborted, because effect {cause} is doomed; rollback {rollback} undoes it"
                ),
                (Some(cause), None) => {
                    write!(f, "already decided: aborted, because effect {cause} is doomed")
                }
                (None, _) => write!(
                    f,
                    "not committed: {} of the closure's {} effects are in the way (effects {}); seal or report them, or wait",
                    decision.blockers.len(),
                    decision.closure.len(),
                    ids(&decision.blockers.iter().map(|b| b.effect).collect::<Vec<_>>())
                ),
            },
            Refusal::ReconcileConflict { path } => {
                write!(
                    f,
                    "the winner rests on the loser along effects {}; abort both or commit both",
                    ids(path)
                )
            }
            Refusal::StaleToken { branch, held, current } => match (held, current) {
                (Some(held), Some(current)) => {
                    write!(
                        f,
                        "token {held} of branch {branch:?} is stale, {current} is current; take over or join to go on"
                    )
                }
                _ => write!(
                    f,
                    "branch {branch:?} was addressed without a valid token; get the object through its branch"
                ),
            },
            Refusal::DoomedBranch { branch, cause } => match cause {
                Some(cause) => write!(
                    f,
                    "branch {branch:?} is doomed because effect {cause} is; resume it to go on from what survives"
                ),
                None => {
                    write!(f, "branch {branch:?} is doomed; resume it to go on from what survives")
                }
            },
            Refusal::BranchClosed { branch, .. } => {
                write!(f, "branch {branch:?} is closed and takes no more work; create another")
            }
            Refusal::DoomedDependency { dependency, key } => match key {
                Some(key) => write!(
                    f,
                    "effect {dependency}, the version of key {key:?} that was named, is doomed; read the key again"
                ),
                None => write!(f, "effect {dependency} is doomed, nothing new can rest on it"),
            },
            Refusal::BranchExists { branch } => {
                write!(
                    f,
                    "branch {branch:?} exists; use takeover if its work is yours, or another name"
                )
            }
            Refusal::InverseRequired { tool } => write!(
                f,
                "tool {tool:?} has no inverse and is not declared irreversible; give an inverse at its registration (one without arguments is enough where its outcome completes it: inverse_after=, done(inverse=)), or reversibility=\"irreversible\", or set require_inverse=False"
            ),
            Refusal::CompensationScope { branch, rollback } => {
                write!(
                    f,
                    "branch {branch:?} is being compensated by rollback {rollback}; not during compensation: only cleanup is allowed"
                )
            }
            Refusal::UncommittedKey { key, writers } => {
                write!(
                    f,
                    "key {key:?} has writers (effects {}) that the branch's read rule does not admit yet",
                    ids(writers)
                )
            }
            Refusal::DirtyKey { key, writers, rollback } => match rollback {
                Some(rollback) => write!(
                    f,
                    "key {key:?} may show a doomed value (effects {}); rollback {rollback} undoes it",
                    ids(writers)
                ),
                None => write!(f, "key {key:?} may show a doomed value (effects {})", ids(writers)),
            },
            Refusal::KeyBusy { key, writers } => {
                write!(
                    f,
                    "key {key:?} has a call in flight (effects {}); wait for its outcome",
                    ids(writers)
                )
            }
            Refusal::IdempotencyConflict { effect, differs: "kind" } => {
                write!(
                    f,
                    "the idempotency key belongs to record {effect}, which is of another kind; use another key"
                )
            }
            Refusal::IdempotencyConflict {
                effect,
                differs: differs @ ("primary" | "compensation"),
            } => {
                write!(
                    f,
                    "the idempotency key belongs to artifact {effect}, whose {differs} differs; use another key"
                )
            }
            Refusal::IdempotencyConflict { effect, differs } => {
                write!(
                    f,
                    "the idempotency key belongs to effect {effect}, whose {differs} differs; use another key"
                )
            }
            Refusal::AlreadySettled { reference, state } => {
                write!(f, "already decided: {reference} is {state}")
            }
            Refusal::HeldByRollback { effect, state, rollback } => write!(
                f,
                "effect {effect} ({state}) is held by rollback {rollback}, which undoes it; follow that one"
            ),
            Refusal::IrreversibleBeforeFence { tool } => write!(
                f,
                "tool {tool:?} is irreversible and cannot start before its fence; leave it deferred, or pass approval="
            ),
            Refusal::ApprovalRequired { tool, approval } => {
                write!(f, "approval {approval} for tool {tool:?} is not given yet")
            }
            Refusal::ApprovalClosed { approval, state, successor } => match successor {
                Some(next) => {
                    write!(f, "approval {approval} is {state}; approval {next} took its place")
                }
                None => write!(f, "approval {approval} is {state}"),
            },
            Refusal::SeparationOfDuties { approval, by } => {
                write!(f, "{by:?} caused what approval {approval} is about and may not answer it")
            }
            Refusal::ReasonRequired { approval, .. } => {
                write!(f, "approval {approval} needs a written reason")
            }
            Refusal::ArtifactDuties { artifact, by } => {
                write!(f, "{by:?} created or submitted artifact {artifact} and may not approve it")
            }
            Refusal::ArtifactReasonRequired { artifact, .. } => {
                write!(f, "the approval of artifact {artifact} needs a written reason")
            }
            Refusal::LimitExceeded { limit, value, allowed, wait_for } => {
                write!(f, "{limit} would be {value}, the limit is {allowed}")?;
                if wait_for.is_empty() {
                    Ok(())
                } else {
                    write!(f, "; wait for effects {}", ids(wait_for))
                }
            }
            Refusal::Frozen { by, reason } => write!(f, "the store is frozen by {by:?}: {reason}"),
            Refusal::LeaseLost { step, holder } => match holder {
                Some(holder) => write!(f, "step {step} is held by {holder:?} now"),
                None => write!(f, "step {step} is not held under this lease any more"),
            },
            Refusal::NotFound { reference, .. } => write!(f, "there is no {reference}"),
            Refusal::CommitReserved { target } => {
                f.write_str("the policy reserves commits for reconcile; seal ")?;
                match target {
                    Name::Id(effect) => write!(f, "the branch of effect {effect}")?,
                    Name::Text(branch) => write!(f, "branch {branch:?}")?,
                }
                f.write_str(" and let the authority decide")
            }
            Refusal::ArtifactState { artifact, state, hint } => {
                write!(f, "artifact {artifact} is {state}: {hint}")
            }
            Refusal::ContentMismatch { artifact } => write!(
                f,
                "the content of artifact {artifact} is not the one that was reviewed (its SHA-256 differs, or it is gone); put the reviewed content back, or have a new pair approved"
            ),
            Refusal::Options { option, reason } => write!(f, "{option}: {reason}"),
        }
    }
}

impl std::error::Error for Refusal {}
