//! Payloads: bytes that the store keeps and never looks into.

use minicbor::data::Tag;
use minicbor::decode::{Decoder, Error as DecodeError};
use minicbor::encode::{Encoder, Error as EncodeError, Write};
use minicbor::{Decode, Encode};

/// The CBOR tag that marks a payload's place in a record's header ("es").
pub const PAYLOAD_TAG: u64 = 0x6573;

/// Length and hash of a payload. In a record's header it stands under [`PAYLOAD_TAG`]; the bytes
/// follow the header in the order in which the marks stand, so any reader finds and checks them
/// without knowing the kinds of records.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PayloadRef {
    /// Length in bytes.
    pub length: u64,
    /// blake3 of the bytes.
    pub hash: [u8; 32],
}

impl PayloadRef {
    /// The reference of these bytes.
    ///
    /// ```
    /// use effectstore::model::PayloadRef;
    /// assert_eq!(PayloadRef::of(b"abc").length, 3);
    /// ```
    pub fn of(bytes: &[u8]) -> Self {
        PayloadRef { length: bytes.len() as u64, hash: *blake3::hash(bytes).as_bytes() }
    }
}

impl std::fmt::Debug for PayloadRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "payload of {} bytes", self.length)
    }
}

impl<C> Encode<C> for PayloadRef {
    fn encode<W: Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), EncodeError<W::Error>> {
        e.tag(Tag::new(PAYLOAD_TAG))?.array(2)?.u64(self.length)?.bytes(&self.hash)?;
        Ok(())
    }
}

impl<'b, C> Decode<'b, C> for PayloadRef {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, DecodeError> {
        if d.tag()?.as_u64() != PAYLOAD_TAG || d.array()? != Some(2) {
            return Err(DecodeError::message("not a payload reference"));
        }
        let length = d.u64()?;
        let hash =
            d.bytes()?.try_into().map_err(|_| DecodeError::message("a hash has 32 bytes"))?;
        Ok(PayloadRef { length, hash })
    }
}
