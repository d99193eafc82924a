//! Payload bytes on their way into and out of the log.

use std::collections::HashMap;

use super::corrupted;
use crate::codec::{CHUNK_BYTES, INLINE_PAYLOAD_BYTES, PayloadItem, Record};
use crate::model::PayloadRef;
use crate::storage::{ReadView, StorageError, Table, WriteBatch};

/// The bytes that belong to a command, by their reference.
///
/// ```
/// let mut payloads = effectstore::log::Payloads::default();
/// let args = payloads.put(b"\xa1\x61x\x01".to_vec());
/// assert_eq!(args.length, 4);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Payloads {
    // Only ever looked up by hash, so the map's order cannot matter.
    bytes: HashMap<[u8; 32], Vec<u8>>,
}

impl Payloads {
    /// Adds bytes and returns their reference.
    pub fn put(&mut self, bytes: Vec<u8>) -> PayloadRef {
        let reference = PayloadRef::of(&bytes);
        self.bytes.insert(reference.hash, bytes);
        reference
    }

    /// Whether one of them is too large to lie in a record.
    pub(super) fn hold_blobs(&self) -> bool {
        self.bytes.values().any(|bytes| bytes.len() > INLINE_PAYLOAD_BYTES)
    }

    /// The bytes of a reference.
    pub fn get(&self, reference: &PayloadRef) -> Option<&[u8]> {
        self.bytes.get(&reference.hash).map(Vec::as_slice)
    }
}

fn chunk_key(reference: &PayloadRef, chunk: u32) -> [u8; 36] {
    let mut key = [0; 36];
    key[..32].copy_from_slice(&reference.hash);
    key[32..].copy_from_slice(&chunk.to_be_bytes());
    key
}

/// Puts a payload that is too large for a record into the blob table, in the record's transaction.
pub(super) fn put_blob(
    batch: &mut dyn WriteBatch,
    reference: &PayloadRef,
    bytes: &[u8],
) -> Result<(), StorageError> {
    if bytes.len() <= INLINE_PAYLOAD_BYTES {
        return Ok(());
    }
    for (number, chunk) in (0_u32..).zip(bytes.chunks(CHUNK_BYTES)) {
        batch.put(Table::Blobs, &chunk_key(reference, number), chunk)?;
    }
    Ok(())
}

pub(super) fn read_blob(
    view: &dyn ReadView,
    reference: &PayloadRef,
) -> Result<Vec<u8>, StorageError> {
    let mut bytes = Vec::new();
    let mut number = 0_u32;
    while (bytes.len() as u64) < reference.length {
        let Some(chunk) = view.get(Table::Blobs, &chunk_key(reference, number))? else {
            return Err(corrupted(format!("blob {}", hex(&reference.hash))));
        };
        bytes.extend_from_slice(&chunk);
        number += 1;
    }
    if PayloadRef::of(&bytes) != *reference {
        return Err(corrupted(format!("blob {}", hex(&reference.hash))));
    }
    Ok(bytes)
}

/// The bytes of a payload of record `seq`; `None` where it was redacted.
///
/// # Errors
/// [`StorageError::Corrupted`] names the record or blob that does not match its hash.
pub fn read_payload(
    view: &dyn ReadView,
    seq: u64,
    reference: &PayloadRef,
) -> Result<Option<Vec<u8>>, StorageError> {
    let Some(bytes) = view.record(seq)? else { return Err(corrupted(format!("record {seq}"))) };
    let record =
        Record::decode(&bytes).map_err(|error| corrupted(format!("record {seq}: {error}")))?;
    for (found, item) in record.payloads {
        if found == *reference {
            return match item {
                PayloadItem::Inline(bytes) => Ok(Some(bytes)),
                PayloadItem::Blob => read_blob(view, reference).map(Some),
                PayloadItem::Absent => Ok(None),
            };
        }
    }
    Err(corrupted(format!("record {seq} does not hold the payload that it names")))
}

/// Copies the blobs that a record names.
pub(super) fn copy_blobs(
    view: &dyn ReadView,
    into: &mut dyn WriteBatch,
    seq: u64,
    record: &[u8],
) -> Result<(), StorageError> {
    let record =
        Record::decode(record).map_err(|error| corrupted(format!("record {seq}: {error}")))?;
    for (reference, item) in record.payloads {
        if item == PayloadItem::Blob {
            let bytes = read_blob(view, &reference)?;
            put_blob(into, &reference, &bytes)?;
        }
    }
    Ok(())
}

/// Bytes as lower-case hexadecimal text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
