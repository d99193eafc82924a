//! Encoding and decoding of one record.

use minicbor::data::Type;
use minicbor::decode::Decoder;
use minicbor::encode::Encoder;
use minicbor::{Decode, Encode};

use super::{INLINE_PAYLOAD_BYTES, payload_refs};
use crate::model::{Command, Event, PayloadRef};

/// What a record says.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Header {
    /// When it was written, in milliseconds of the store's clock. Nothing is ordered by it.
    #[n(0)]
    pub time_ms: u64,
    /// The command's id, on its first record.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub command_id: Option<[u8; 16]>,
    /// How many records of the same command follow.
    #[n(2)]
    pub more: Option<u64>,
    /// The command, on its first record, unless its events say it all (a registration).
    #[n(3)]
    pub command: Option<Command>,
    /// What happened.
    #[n(4)]
    pub event: Event,
}

/// The same as [`Header`], for writing: it borrows what it says.
#[derive(Clone, Copy, Debug, Encode)]
#[cbor(map)]
pub struct HeaderRef<'a> {
    /// See [`Header::time_ms`].
    #[n(0)]
    pub time_ms: u64,
    /// See [`Header::command_id`].
    #[cbor(n(1), with = "minicbor::bytes")]
    pub command_id: Option<[u8; 16]>,
    /// See [`Header::more`].
    #[n(2)]
    pub more: Option<u64>,
    /// See [`Header::command`].
    #[n(3)]
    pub command: Option<&'a Command>,
    /// See [`Header::event`].
    #[n(4)]
    pub event: &'a Event,
}

impl<'a> From<&'a Header> for HeaderRef<'a> {
    fn from(header: &'a Header) -> Self {
        let Header { time_ms, command_id, more, command, event } = header;
        HeaderRef {
            time_ms: *time_ms,
            command_id: *command_id,
            more: *more,
            command: command.as_ref(),
            event,
        }
    }
}

/// A payload as a record holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadItem {
    /// The bytes.
    Inline(Vec<u8>),
    /// In the blob table.
    Blob,
    /// Not here: redacted, or held by the record that first named it.
    Absent,
}

/// A decoded record.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What it says.
    pub header: Header,
    /// The header's bytes, which the chain covers.
    pub header_bytes: Vec<u8>,
    /// Its payloads, in the order of their references.
    pub payloads: Vec<(PayloadRef, PayloadItem)>,
    /// Its chain hash.
    pub hash: [u8; 32],
}

/// Bytes that are no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError(pub String);

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<minicbor::decode::Error> for DecodeError {
    fn from(error: minicbor::decode::Error) -> Self {
        DecodeError(error.to_string())
    }
}

/// The chain hash of a record.
pub fn chain(previous: &[u8; 32], seq: u64, header: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(previous);
    hasher.update(&seq.to_be_bytes());
    hasher.update(header);
    *hasher.finalize().as_bytes()
}

/// Encodes a record into `into`, which is cleared first, and returns its chain hash. `payload` finds
/// the bytes of a reference; what it does not know is marked as not here.
///
/// # Errors
/// Only where a member set is too large to be written.
pub fn encode<'p>(
    into: &mut Vec<u8>,
    previous: &[u8; 32],
    seq: u64,
    header: HeaderRef<'_>,
    payload: &dyn Fn(&PayloadRef) -> Option<&'p [u8]>,
) -> Result<[u8; 32], DecodeError> {
    into.clear();
    let failed = |error: String| DecodeError(error);
    minicbor::encode(header, &mut *into).map_err(|error| failed(error.to_string()))?;
    let hash = chain(previous, seq, into);
    let refs = payload_refs(into)?;
    let mut encoder = Encoder::new(&mut *into);
    for reference in refs {
        let written = match payload(&reference) {
            Some(bytes) if bytes.len() <= INLINE_PAYLOAD_BYTES => encoder.bytes(bytes).map(|_| ()),
            Some(_) => encoder.bool(true).map(|_| ()),
            None => encoder.null().map(|_| ()),
        };
        written.map_err(|error| failed(error.to_string()))?;
    }
    encoder.bytes(&hash).map_err(|error| failed(error.to_string()))?;
    Ok(hash)
}

/// A record's parts, without what its header says: that needs no knowledge of kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The header's bytes, which the chain covers.
    pub header_bytes: Vec<u8>,
    /// Its payloads, in the order of their references.
    pub payloads: Vec<(PayloadRef, PayloadItem)>,
    /// Its chain hash.
    pub hash: [u8; 32],
}

impl Frame {
    /// Takes a record apart. Allocates for what is there, never for a length that is claimed.
    ///
    /// # Errors
    /// Where the bytes are no record, or an inline payload does not match its hash.
    pub fn decode(bytes: &[u8]) -> Result<Frame, DecodeError> {
        let mut decoder = Decoder::new(bytes);
        decoder.skip()?;
        let header_bytes = bytes[..decoder.position()].to_vec();
        let mut payloads = Vec::new();
        for reference in payload_refs(&header_bytes)? {
            let item = match decoder.datatype()? {
                Type::Bytes => {
                    let found = decoder.bytes()?;
                    if PayloadRef::of(found) != reference {
                        return Err(DecodeError("a payload does not match its hash".into()));
                    }
                    PayloadItem::Inline(found.to_vec())
                }
                Type::Bool => {
                    decoder.bool()?;
                    PayloadItem::Blob
                }
                Type::Null => {
                    decoder.null()?;
                    PayloadItem::Absent
                }
                other => return Err(DecodeError(format!("{other} in the place of a payload"))),
            };
            payloads.push((reference, item));
        }
        let hash =
            decoder.bytes()?.try_into().map_err(|_| DecodeError("a hash has 32 bytes".into()))?;
        if decoder.position() != bytes.len() {
            return Err(DecodeError("bytes after the chain hash".into()));
        }
        Ok(Frame { header_bytes, payloads, hash })
    }
}

/// What can be told of a record that a later version of this program wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newer {
    /// When it was written, in milliseconds of the store's clock.
    pub time_ms: u64,
    /// The index of its event; this program may know it, and not what is in it.
    pub event: u64,
}

impl Newer {
    /// Looks at a header that cannot be decoded; `None` if it is damaged rather than newer. That its
    /// bytes fit the chain is for the caller to check.
    pub fn of(header: &[u8]) -> Option<Newer> {
        let known = minicbor::decode::<Header>(header);
        // What every version keeps: the map with integer keys, and the event's index.
        if !known.is_err_and(|error| error.is_unknown_variant()) {
            return None;
        }
        let mut decoder = Decoder::new(header);
        let mut newer = Newer { time_ms: 0, event: 0 };
        for _ in 0..decoder.map().ok()?? {
            match decoder.u64().ok()? {
                0 => newer.time_ms = decoder.u64().ok()?,
                4 => {
                    let before = decoder.position();
                    decoder.array().ok()?;
                    newer.event = decoder.u64().ok()?;
                    decoder.set_position(before);
                    decoder.skip().ok()?;
                }
                _ => decoder.skip().ok()?,
            }
        }
        Some(newer)
    }
}

impl Record {
    /// Decodes a record. Allocates for what is there, never for a length that is claimed.
    ///
    /// # Errors
    /// Where the bytes are no record, or an inline payload does not match its hash.
    pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
        let header = Self::decode_header(bytes)?;
        let Frame { header_bytes, payloads, hash } = Frame::decode(bytes)?;
        Ok(Record { header, header_bytes, payloads, hash })
    }

    /// Decodes only what happened, which is all that folding needs.
    ///
    /// # Errors
    /// Where the bytes do not begin with a header.
    pub fn decode_header(bytes: &[u8]) -> Result<Header, DecodeError> {
        Ok(Decoder::new(bytes).decode()?)
    }

    /// The chain hash of an encoded record, which is its last 32 bytes.
    pub fn stored_hash(bytes: &[u8]) -> Option<[u8; 32]> {
        bytes.last_chunk::<32>().copied()
    }
}
