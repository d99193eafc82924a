//! Moving a store through a file: a CBOR sequence (RFC 8742) of byte strings, one a record, each
//! followed by the blobs that it names.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::ops::ControlFlow;
use std::path::Path;

use super::corrupted;
use crate::codec::{Frame, PayloadItem, Record};
use crate::storage::{ReadView, StorageError, WriteBatch};

/// The first item of the file.
const MAGIC: &str = "effectstore export 0";

/// Most bytes of one item: a record of the largest transaction.
const ITEM_BYTES: u64 = 64 << 20;

fn io(op: &'static str) -> impl Fn(std::io::Error) -> StorageError {
    move |error| StorageError::Io { op: op.to_owned(), source: error.to_string() }
}

/// Writes all records and blobs of a view into a new file, and flushes it.
///
/// # Errors
/// [`StorageError::Io`] where the file cannot be written; an existing file is not replaced.
pub fn export(view: &dyn ReadView, file: &Path) -> Result<u64, StorageError> {
    let created = File::options().write(true).create_new(true).open(file);
    let mut out = BufWriter::new(created.map_err(io("create the export file"))?);
    let mut item = Vec::new();
    minicbor::encode(MAGIC, &mut item).map_err(|error| corrupted(error.to_string()))?;
    out.write_all(&item).map_err(io("write the export file"))?;
    let mut failed = None;
    let mut records = 0;
    view.scan(1, &mut |seq, bytes| match export_one(view, &mut out, seq, bytes) {
        Ok(()) => {
            records += 1;
            ControlFlow::Continue(())
        }
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let file = out.into_inner().map_err(|error| io("write the export file")(error.into_error()))?;
    file.sync_all().map_err(io("flush the export file"))?;
    Ok(records)
}

fn write_item(out: &mut impl std::io::Write, bytes: &[u8]) -> Result<(), StorageError> {
    let mut head = Vec::with_capacity(9);
    let mut encoder = minicbor::Encoder::new(&mut head);
    encoder.bytes_len(bytes.len() as u64).map_err(|error| corrupted(error.to_string()))?;
    out.write_all(&head).map_err(io("write the export file"))?;
    out.write_all(bytes).map_err(io("write the export file"))
}

fn export_one(
    view: &dyn ReadView,
    out: &mut impl std::io::Write,
    seq: u64,
    bytes: &[u8],
) -> Result<(), StorageError> {
    write_item(out, bytes)?;
    let frame =
        Frame::decode(bytes).map_err(|error| corrupted(format!("record {seq}: {error}")))?;
    for (reference, item) in &frame.payloads {
        if *item == PayloadItem::Blob {
            write_item(out, &super::payload::read_blob(view, reference)?)?;
        }
    }
    Ok(())
}

/// Reads one byte string; `None` at the end of the file.
fn read_item(from: &mut impl std::io::Read) -> Result<Option<Vec<u8>>, StorageError> {
    let mut head = [0_u8; 9];
    if from.read(&mut head[..1]).map_err(io("read the import file"))? == 0 {
        return Ok(None);
    }
    let extra = match head[0] {
        0x40..=0x57 => 0,
        0x58 => 1,
        0x59 => 2,
        0x5a => 4,
        0x5b => 8,
        _ => return Err(corrupted("import file: an item that is no byte string")),
    };
    from.read_exact(&mut head[1..=extra]).map_err(io("read the import file"))?;
    let length = if extra == 0 {
        u64::from(head[0] & 0x1f)
    } else {
        head[1..=extra].iter().fold(0, |length, byte| length << 8 | u64::from(*byte))
    };
    if length > ITEM_BYTES {
        return Err(corrupted(format!("import file: an item of {length} bytes")));
    }
    let mut bytes = Vec::new();
    let read = from.take(length).read_to_end(&mut bytes).map_err(io("read the import file"))?;
    if read as u64 != length {
        return Err(corrupted("import file: it ends within an item"));
    }
    Ok(Some(bytes))
}

/// Fills an empty log from an export file, building every table; checks numbers, chain and payloads.
///
/// # Errors
/// [`StorageError::Corrupted`] names the first record that does not fit.
pub fn import(file: &Path, into: &mut dyn WriteBatch) -> Result<u64, StorageError> {
    let mut from = BufReader::new(File::open(file).map_err(io("open the import file"))?);
    let mut magic = vec![0; MAGIC.len() + 1];
    from.read_exact(&mut magic).map_err(|_| corrupted("import file: its first item"))?;
    if minicbor::decode::<&str>(&magic).ok() != Some(MAGIC) {
        return Err(corrupted("import file: its first item"));
    }
    let mut state = crate::state::State::default();
    let mut index = super::Index::default();
    let mut tail = super::Tail::default();
    let mut left = 0_u64;
    while let Some(bytes) = read_item(&mut from)? {
        let seq = tail.head + 1;
        let record =
            Record::decode(&bytes).map_err(|error| corrupted(format!("record {seq}: {error}")))?;
        let hash = crate::codec::chain(&tail.hash, seq, &record.header_bytes);
        if hash != record.hash {
            return Err(corrupted(format!("record {seq} does not fit the chain")));
        }
        into.append(seq, &bytes)?;
        for (reference, item) in &record.payloads {
            if *item == PayloadItem::Blob {
                let blob = read_item(&mut from)?.unwrap_or_default();
                if crate::model::PayloadRef::of(&blob) != *reference {
                    return Err(corrupted(format!("record {seq}: a blob does not match its hash")));
                }
                super::payload::put_blob(into, reference, &blob)?;
            }
        }
        if left == 0 {
            index.prepare_fold(&mut state, tail.head);
            index.write_fold(into, tail.head)?;
        }
        state.tidy();
        state.apply(seq, record.header.time_ms, &record.header.event);
        tail = super::Tail { head: seq, hash };
        index.note(into, seq, &record.header.event, &state)?;
        left = if left == 0 { record.header.more.unwrap_or(0) } else { left - 1 };
    }
    Ok(tail.head)
}
