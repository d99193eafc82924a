//! BREAK: the signal of an agent that cannot go on, and who has to take note of it.

use minicbor::{Decode, Encode};

use super::{BranchId, BreakId, NoticeId};

/// How bad a BREAK is. It decides how loud a missing acknowledgement is escalated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum BreakSeverity {
    /// It may pass by itself.
    #[default]
    #[n(0)]
    Transient,
    /// It does not pass by itself.
    #[n(1)]
    Permanent,
    /// More than the work of the branch is at stake.
    #[n(2)]
    Catastrophic,
}

impl BreakSeverity {
    /// The severity's name, the same in every language.
    ///
    /// ```
    /// assert_eq!(effectstore::model::BreakSeverity::Permanent.name(), "permanent");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            BreakSeverity::Transient => "transient",
            BreakSeverity::Permanent => "permanent",
            BreakSeverity::Catastrophic => "catastrophic",
        }
    }
}

/// A BREAK as it was signalled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Signal {
    /// The branch that broke.
    #[n(0)]
    pub branch: BranchId,
    /// Its agent.
    #[n(1)]
    pub agent: String,
    /// How bad it is.
    #[n(2)]
    pub severity: BreakSeverity,
    /// Why, in words.
    #[n(3)]
    pub reason: String,
    /// Whether the branch may resume.
    #[n(4)]
    pub recoverable: bool,
    /// Agents whose steps wait until the agent that broke has confirmed, ascending.
    #[cbor(n(5), default, skip_if = "Vec::is_empty")]
    pub upstream: Vec<String>,
    /// Moment by which everybody told has to acknowledge, in milliseconds of the store's clock.
    #[n(6)]
    pub ack_by_ms: u64,
}

/// A notice to one agent, as its inbox shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeInfo {
    /// Its id.
    pub id: NoticeId,
    /// To whom it is.
    pub agent: String,
    /// The BREAK that it tells of.
    pub signal: BreakId,
    /// The branch that broke.
    pub branch: BranchId,
    /// Its name.
    pub branch_name: String,
    /// How bad it is.
    pub severity: BreakSeverity,
    /// Why, in words.
    pub reason: String,
    /// Whether the branch may resume.
    pub recoverable: bool,
    /// Moment by which it is to be acknowledged, in milliseconds of the store's clock.
    pub ack_by_ms: u64,
    /// Whether it was acknowledged.
    pub acknowledged: bool,
}
