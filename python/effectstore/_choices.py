"""Choices: lower-case words, the same in Rust, C and JSON."""

from typing import Literal, TypeAlias

ReadRule: TypeAlias = Literal["speculative", "sealed", "committed"]
"""What a branch may rest on: anything live, sealed writers only, committed writers only."""

Overwrite: TypeAlias = Literal["guard", "depend"]
"""What writing over a live writer means: no dependency, or a dependency on each of them."""

Reversibility: TypeAlias = Literal["full", "partial", "irreversible"]
"""How far an effect can be undone."""

Mode: TypeAlias = Literal["eager", "deferred"]
"""When an effect runs: before its fence, or after it through the outbox."""

EffectState: TypeAlias = Literal["live", "committed", "doomed", "void"]
"""The state of an effect; committed, doomed and void are disjoint (I6)."""

Outcome: TypeAlias = Literal["unknown", "done", "not_run"]
"""What is known of an effect's call."""

BranchState: TypeAlias = Literal["open", "closed", "doomed"]
"""The state of a branch."""

Escalate: TypeAlias = Literal["wait", "never"]
"""What a commit does when something is in its way: leave a durable intent, or refuse."""

OnConflict: TypeAlias = Literal["raise", "abort"]
"""What a reconcile does when a winner rests on a loser."""

Missing: TypeAlias = Literal["fail", "leave"]
"""What becomes of a step that nobody here can run."""

OnFailure: TypeAlias = Literal["halt", "continue"]
"""What a failed inverse does to the rest of the order."""

IfUnknown: TypeAlias = Literal["raise", "run"]
"""What a repeated call does when the outcome of the first is unknown."""

IrreversibleRule: TypeAlias = Literal["approval", "after-fence"]
"""When an irreversible effect may act."""

Authority: TypeAlias = Literal["owner", "reconcile"]
"""Who may commit."""

DecisionKind: TypeAlias = Literal["commit", "abort", "escalate"]
"""What the fence would do."""

BlockReason: TypeAlias = Literal["no_vote", "unknown"]
"""Why an effect is in the way of a commit."""

FenceStatus: TypeAlias = Literal["committed", "waiting", "aborted"]
"""How far a fence is."""

FailureKind: TypeAlias = Literal[
    "error",
    "permanent",
    "conflict",
    "expired",
    "denied",
    "timeout",
    "no_handler",
    "not_compensable",
    "unconfirmed",
    "content_mismatch",
]
"""Why a step failed."""

ArtifactState: TypeAlias = Literal[
    "draft",
    "in_review",
    "approved",
    "promoted",
    "executing",
    "completed",
    "failed",
    "failed_compensated",
    "failed_uncompensated",
    "rejected",
]
"""How far an artifact is. A failed primary's compensation is due, has run, or a person must act."""

RollbackState: TypeAlias = Literal["awaiting_approval", "due", "running", "blocked", "in_review", "closed"]
"""The state of a rollback."""

Trigger: TypeAlias = Literal["automatic", "agent", "judge", "human"]
"""Who caused a rollback."""

ApprovalKind: TypeAlias = Literal["rollback", "effect"]
"""What an approval is about."""

ApprovalState: TypeAlias = Literal["pending", "approved", "denied", "stale"]
"""The state of an approval."""

RequestTrigger: TypeAlias = Literal["human", "agent", "judge"]
"""Who asks for a governed rollback."""

CauseCategory: TypeAlias = Literal["prompt", "data", "policy", "process", "tool", "other"]
"""What kind of root cause a rollback had."""

Reach: TypeAlias = Literal["full", "partial", "irreversible", "not_compensable"]
"""How far a set of steps can be undone: its worst member decides."""

Severity: TypeAlias = Literal["warning", "critical"]
"""How loud an alert is."""

BreakSeverity: TypeAlias = Literal["transient", "permanent", "catastrophic"]
"""How bad a BREAK is."""

NoticeKind: TypeAlias = Literal["break"]
"""What a notice tells of."""

StepOutcome: TypeAlias = Literal[
    "completed",
    "failed",
    "permanent",
    "later",
    "timed_out",
    "mismatched",
    "no_handler",
    "interrupted",
    "never_happened",
    "leave",
]
"""How one attempt at a step ended."""

RECORD_KINDS = (
    "alert_acknowledged",
    "alerted",
    "approval_answered",
    "approval_requested",
    "approval_stale",
    "artifact_created",
    "artifact_failed",
    "artifact_moved",
    "artifact_ran",
    "branch_created",
    "branch_leased",
    "branch_merged",
    "branch_resumed",
    "branch_stopped",
    "branch_taken",
    "break_confirmed",
    "break_signalled",
    "break_unheard",
    "closed",
    "configured",
    "confirm_by",
    "created",
    "delivered",
    "delivery_held",
    "done",
    "doomed",
    "effects_recalled",
    "evidence",
    "exposed",
    "fenced",
    "frozen",
    "intended",
    "intent_ended",
    "lease_expired",
    "not_run",
    "notice_acknowledged",
    "notified",
    "observation_refused",
    "observed",
    "observed_late",
    "refused",
    "registered",
    "remedy_waived",
    "reopened",
    "restored",
    "rollback_finished",
    "rollback_overdue",
    "rollback_requested",
    "rollback_started",
    "root_cause_recorded",
    "step_claimed",
    "step_completed",
    "step_discarded",
    "step_due",
    "step_failed",
    "step_released",
    "step_renewed",
    "step_resolved",
    "step_retried",
    "unfrozen",
    "voted",
    "window_passed",
)
"""The kinds of records that this version writes, as `store.log()` shows them."""
