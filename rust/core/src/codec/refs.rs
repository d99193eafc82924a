//! Finding the payloads of a record without knowing its kind.

use minicbor::data::Type;
use minicbor::decode::{Decoder, Error};

use crate::model::{PAYLOAD_TAG, PayloadRef};

/// The payload references of a header, in the order in which they first appear.
///
/// # Errors
/// Where the bytes are no CBOR, or a marked place is no payload reference.
pub fn payload_refs(header: &[u8]) -> Result<Vec<PayloadRef>, Error> {
    let mut refs: Vec<PayloadRef> = Vec::new();
    let mut decoder = Decoder::new(header);
    while decoder.position() < header.len() {
        match decoder.datatype()? {
            Type::Tag => {
                let before = decoder.position();
                if decoder.tag()?.as_u64() == PAYLOAD_TAG {
                    decoder.set_position(before);
                    let found: PayloadRef = decoder.decode()?;
                    if !refs.contains(&found) {
                        refs.push(found);
                    }
                }
            }
            // Containers are entered, so that nothing in them is missed and nothing recurses.
            Type::Array => {
                decoder.array()?;
            }
            Type::Map => {
                decoder.map()?;
            }
            _ => decoder.skip()?,
        }
    }
    Ok(refs)
}
