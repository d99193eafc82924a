//! Appending a command's events to the log and its tables.

use super::payload::put_blob;
use super::{Index, Payloads, corrupted};
use crate::codec::{HeaderRef, encode, payload_refs};
use crate::model::{Command, Event, PayloadRef};
use crate::state::State;
use crate::storage::{StorageError, WriteBatch};

/// The end of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Number of the last record; 0 for an empty log.
    pub head: u64,
    /// Its chain hash; zeroes for an empty log.
    pub hash: [u8; 32],
}

/// A transaction on its way into the log.
pub struct Batch<'a> {
    /// The storage transaction.
    pub write: Box<dyn WriteBatch + 'a>,
    /// Records appended so far.
    pub records: u64,
    /// Bytes of records appended so far.
    pub bytes: u64,
    buffer: Vec<u8>,
}

impl<'a> Batch<'a> {
    /// Begins with nothing appended.
    pub fn new(write: Box<dyn WriteBatch + 'a>) -> Self {
        Batch { write, records: 0, bytes: 0, buffer: Vec::new() }
    }

    /// Appends a command's events, which are folded into `state` already, and brings the tables up
    /// to date. The command is written with its first event, so that deciding it again can be
    /// compared with what was decided.
    ///
    /// # Errors
    /// As the storage's; the batch cannot be committed after one.
    #[allow(clippy::too_many_arguments)] // The parts of one record.
    pub fn append(
        &mut self,
        tail: &mut Tail,
        index: &mut Index,
        state: &State,
        command: &Command,
        command_id: [u8; 16],
        time_ms: u64,
        events: &[Event],
        payloads: &Payloads,
    ) -> Result<(), StorageError> {
        let count = events.len() as u64;
        let blobs = payloads.hold_blobs();
        if count > 0 {
            index.write_fold(self.write.as_mut(), tail.head)?;
        }
        for (place, event) in (0_u64..).zip(events) {
            let first = place == 0;
            let more = count - place - 1;
            let told = first && !tell_their_command(command, events);
            let header = HeaderRef {
                time_ms,
                command_id: first.then_some(command_id),
                more: (more > 0).then_some(more),
                command: told.then_some(command),
                event,
            };
            let seq = tail.head + 1;
            let find = |reference: &PayloadRef| payloads.get(reference);
            let hash = encode(&mut self.buffer, &tail.hash, seq, header, &find)
                .map_err(|error| corrupted(error.to_string()))?;
            self.write.append(seq, &self.buffer)?;
            if blobs {
                self.put_blobs(payloads)?;
            }
            self.records += 1;
            self.bytes += self.buffer.len() as u64;
            *tail = Tail { head: seq, hash };
            index.note(self.write.as_mut(), seq, event, state)?;
        }
        Ok(())
    }

    fn put_blobs(&mut self, payloads: &Payloads) -> Result<(), StorageError> {
        let refs = payload_refs_of(&self.buffer).map_err(|error| corrupted(error.to_string()))?;
        for reference in refs {
            if let Some(bytes) = payloads.get(&reference) {
                put_blob(self.write.as_mut(), &reference, bytes)?;
            }
        }
        Ok(())
    }
}

/// A registration's events hold the whole command, if every item was new; anything else writes it
/// down.
fn tell_their_command(command: &Command, events: &[Event]) -> bool {
    let Command::Register { calls, .. } = command else { return false };
    calls.len() == events.len() && events.iter().all(|event| matches!(event, Event::Registered(_)))
}

fn payload_refs_of(record: &[u8]) -> Result<Vec<PayloadRef>, minicbor::decode::Error> {
    let mut decoder = minicbor::Decoder::new(record);
    decoder.skip()?;
    let refs = payload_refs(&record[..decoder.position()])?;
    Ok(refs.into_iter().filter(|r| r.length > crate::codec::INLINE_PAYLOAD_BYTES as u64).collect())
}
