//! Governed rollbacks: committed effects that are to be undone after all, under an approval.

use minicbor::{Decode, Encode};

use super::{EffectId, MemberSet, Recalled, RollbackId, Trigger};

/// A request to undo committed effects, and the plan as the log tells it at that moment.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Requested {
    /// The rollback whose plan this replaces; absent for a new one, whose id is this record's number.
    #[n(0)]
    pub of: Option<RollbackId>,
    /// The effects that were named.
    #[n(1)]
    pub targets: MemberSet,
    /// Committed members: the named ones, and those that rest on them.
    #[n(2)]
    pub committed: MemberSet,
    /// Live members, with their whole cascade; an approval dooms them.
    #[n(3)]
    pub live: MemberSet,
    /// Who asks.
    #[n(4)]
    pub by: String,
    /// Why.
    #[n(5)]
    pub reason: String,
    /// What caused it.
    #[n(6)]
    pub trigger: Trigger,
    /// Whether what only follows in program order is dragged along.
    #[n(7)]
    pub program_order: bool,
}

impl Requested {
    /// All members, ascending.
    ///
    /// ```
    /// use effectstore::model::{EffectId, MemberSet, Requested, Trigger};
    /// let set = |ids: &[u64]| MemberSet::from_unsorted(ids.to_vec());
    /// let asked = Requested {
    ///     of: None,
    ///     targets: set(&[3]),
    ///     committed: set(&[3, 7]),
    ///     live: set(&[5]),
    ///     by: "judge".into(),
    ///     reason: "wrong".into(),
    ///     trigger: Trigger::Judge,
    ///     program_order: false,
    /// };
    /// assert_eq!(asked.members(), [EffectId(3), EffectId(5), EffectId(7)]);
    /// ```
    pub fn members(&self) -> Vec<EffectId> {
        let mut all: Vec<EffectId> = self.committed.iter().chain(self.live.iter()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// An effect and another that it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(map)]
pub struct Edge {
    /// The effect.
    #[n(0)]
    pub effect: EffectId,
    /// What it rests on.
    #[n(1)]
    pub on: EffectId,
}

/// A governed rollback was approved: its committed members come back into memory to be undone.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Started {
    /// The rollback.
    #[n(0)]
    pub rollback: RollbackId,
    /// Committed members that memory had let go.
    #[n(1)]
    pub effects: Vec<Recalled>,
    /// Committed members in memory: deferred ones that have not run yet, and never will.
    #[n(2)]
    pub held: MemberSet,
    /// Who of the members rests on whom, also where the one was committed before the other began.
    #[cbor(n(3), default, skip_if = "Vec::is_empty")]
    pub edges: Vec<Edge>,
}

/// Why something had to be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum CauseKind {
    /// A prompt or a role's instructions.
    #[n(0)]
    Prompt,
    /// Wrong or missing data.
    #[n(1)]
    Data,
    /// A policy that did not forbid it, or forbade the right thing.
    #[n(2)]
    Policy,
    /// The way of working.
    #[n(3)]
    Process,
    /// A tool.
    #[n(4)]
    Tool,
    /// Something else, which the note names.
    #[n(5)]
    Other,
}

impl CauseKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [CauseKind; 6] = [
        CauseKind::Prompt,
        CauseKind::Data,
        CauseKind::Policy,
        CauseKind::Process,
        CauseKind::Tool,
        CauseKind::Other,
    ];

    /// The kind's name, the same in every language.
    ///
    /// ```
    /// assert_eq!(effectstore::model::CauseKind::Prompt.name(), "prompt");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            CauseKind::Prompt => "prompt",
            CauseKind::Data => "data",
            CauseKind::Policy => "policy",
            CauseKind::Process => "process",
            CauseKind::Tool => "tool",
            CauseKind::Other => "other",
        }
    }
}

/// The root cause of a rollback.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct RootCause {
    /// The rollback.
    #[n(0)]
    pub rollback: RollbackId,
    /// What kind of cause.
    #[n(1)]
    pub category: CauseKind,
    /// The cause in words.
    #[n(2)]
    pub note: String,
    /// Who found it.
    #[n(3)]
    pub by: String,
    /// Reference of what was changed so that it does not happen again.
    #[n(4)]
    pub remedy: Option<String>,
    /// The agents whose effects were undone, ascending.
    #[cbor(n(5), default, skip_if = "Vec::is_empty")]
    pub agents: Vec<String>,
}

impl RootCause {
    /// Whether two rollbacks had the same cause: of one kind, and with the same note, the same remedy
    /// or an agent in common. Letter case and spacing of a note do not count.
    ///
    /// ```
    /// use effectstore::model::{CauseKind, RollbackId, RootCause};
    /// let cause = |id, note: &str| RootCause {
    ///     rollback: RollbackId(id),
    ///     category: CauseKind::Prompt,
    ///     note: note.into(),
    ///     by: "ops".into(),
    ///     remedy: None,
    ///     agents: Vec::new(),
    /// };
    /// assert!(cause(1, "Ambiguous  date").repeats(&cause(2, "ambiguous date")));
    /// assert!(!cause(1, "ambiguous date").repeats(&cause(2, "wrong tone")));
    /// assert!(!cause(1, "x").repeats(&cause(1, "x")), "the same rollback");
    /// ```
    pub fn repeats(&self, other: &RootCause) -> bool {
        let plain =
            |note: &str| note.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
        let remedy = self.remedy.is_some() && self.remedy == other.remedy;
        let agent = self.agents.iter().any(|agent| other.agents.contains(agent));
        self.rollback != other.rollback
            && self.category == other.category
            && (plain(&self.note) == plain(&other.note) || remedy || agent)
    }
}
