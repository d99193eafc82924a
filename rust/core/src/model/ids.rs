//! Ids and tokens. Every id is the number of the record that made it, so one sequence serves all.

use minicbor::{Decode, Encode};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
        #[cbor(transparent)]
        pub struct $name(#[n(0)] pub u64);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// An effect: the number of its registration record.
    ///
    /// ```
    /// assert_eq!(effectstore::model::EffectId(17).to_string(), "17");
    /// ```
    EffectId
);
id!(
    /// A branch: the number of the record that created it.
    BranchId
);
id!(
    /// A fence: the number of its decision record, or of the intent that still waits for one.
    FenceId
);
id!(
    /// A rollback: the number of the doom record that created it.
    RollbackId
);
id!(
    /// An approval: the number of the record that requested it.
    ApprovalId
);
id!(
    /// An alert: the number of the record that raised it.
    AlertId
);
id!(
    /// A BREAK: the number of the record that signalled it.
    BreakId
);
id!(
    /// A notice to one agent: the number of the record that told it.
    NoticeId
);
id!(
    /// An artifact: the number of the record that created it. A pair goes by its primary's.
    ArtifactId
);

/// A strictly increasing proof of ownership (I9): the store's incarnation, then the number of the
/// record that handed it out.
///
/// ```
/// use effectstore::model::Token;
/// assert!(Token { incarnation: 1, number: 9 } < Token { incarnation: 2, number: 1 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Token {
    /// How often the store was restored from a marked backup, plus one.
    #[n(0)]
    pub incarnation: u64,
    /// Number of the record that handed the token out.
    #[n(1)]
    pub number: u64,
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.incarnation, self.number)
    }
}

/// Encodes ascending ids as an array of gaps, which keeps 64 neighbours in about 70 bytes.
pub(crate) mod gaps {
    use minicbor::decode::{Decoder, Error as DecodeError};
    use minicbor::encode::{Encoder, Error as EncodeError, Write};

    use super::EffectId;

    pub(crate) fn encode<C, W: Write>(
        ids: &[EffectId],
        e: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), EncodeError<W::Error>> {
        e.array(ids.len() as u64)?;
        let mut previous = 0;
        for id in ids {
            e.u64(id.0.wrapping_sub(previous))?;
            previous = id.0;
        }
        Ok(())
    }

    pub(crate) fn decode<C>(d: &mut Decoder<'_>, _: &mut C) -> Result<Vec<EffectId>, DecodeError> {
        let length = d.array()?.ok_or_else(|| DecodeError::message("indefinite array of ids"))?;
        let mut ids = Vec::new();
        let mut previous = 0_u64;
        for place in 0..length {
            let gap = d.u64()?;
            previous = previous
                .checked_add(gap)
                .filter(|_| place == 0 || gap > 0)
                .ok_or_else(|| DecodeError::message("ids out of order"))?;
            ids.push(EffectId(previous));
        }
        Ok(ids)
    }

    pub(crate) fn is_nil(ids: &[EffectId]) -> bool {
        ids.is_empty()
    }
}
