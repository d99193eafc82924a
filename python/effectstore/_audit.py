"""The audit record of a rollback: the shape of the rollback process, and what this store adds."""

from typing import TYPE_CHECKING, Any

from effectstore._time import moment

if TYPE_CHECKING:
    from effectstore import _effectstore as core


def audit_record(audit: "core.AuditInfo") -> dict[str, Any]:
    """The record in terms of JSON. The first six names are those of the rollback process."""
    rollback = audit.rollback
    answered = [known for known in audit.approvals if known.state in ("approved", "denied")]
    approved = next((known for known in reversed(answered) if known.state == "approved"), None)
    finished = rollback.finished_ms
    return {
        "type": "rollback",
        "original_action_id": audit.original_action,
        "rollback_steps": [
            {"action": action, "id": effect, "status": status, "attempts": attempts, "by": by}
            for effect, action, status, attempts, by in audit.steps
        ],
        "initiated_by": rollback.initiated_by,
        "approved_by": None if approved is None else approved.answered_by,
        "trigger": rollback.trigger,
        "rollback_id": rollback.id,
        "original_action_ids": list(rollback.direct),
        "governed": rollback.governed,
        "state": rollback.state,
        "reason": rollback.reason,
        "clean": rollback.report.clean,
        "created": moment(rollback.created_ms).isoformat(),
        "finished": None if finished is None else moment(finished).isoformat(),
        "approvals": [
            {
                "id": known.id,
                "state": known.state,
                "requested_by": known.requested_by,
                "answered_by": known.answered_by,
                "reason": known.answer_reason,
                "digest": known.digest.hex(),
            }
            for known in audit.approvals
        ],
        "root_cause": None
        if rollback.root_cause is None
        else dict(zip(("category", "note", "by", "remedy"), rollback.root_cause, strict=True)),
        "remedy_waived": None if rollback.waived is None else dict(zip(("by", "reason"), rollback.waived, strict=True)),
    }
