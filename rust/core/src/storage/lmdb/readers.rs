//! The lock file's reader table, read by hand: LMDB's wrapper does not show it.
//!
//! The file begins with two numbers of 32 bits and the newest durable transaction (u64), which LMDB
//! writes after the meta page of a commit. The table is the end of the file: one slot of 64 bytes for each reader that there may be, with
//! the transaction (u64, all ones: none), the process (u32, 0: free) and the thread, in the
//! machine's byte order.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::storage::{OldestReader, StorageError};

const SLOT_BYTES: usize = 64;
const IDLE: u64 = u64::MAX;

const NEWEST_AT: u64 = 8;

/// Whether no commit has ended since a transaction was the newest one.
pub(super) fn is_newest(lock: &File, transaction: u64) -> Result<bool, StorageError> {
    let mut newest = [0; 8];
    let read = lock.read_exact_at(&mut newest, NEWEST_AT);
    read.map_err(|e| StorageError::io("read the newest transaction", &e))?;
    let newest = u64::from_ne_bytes(newest);
    // Zero: nobody has written since the lock file was made.
    Ok(newest == transaction || newest == 0)
}

/// Who reads at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Readers {
    pub(super) count: u32,
    pub(super) oldest: Option<OldestReader>,
}

/// Reads the table. `newest` is the newest transaction.
pub(super) fn list(lock: &File, slots: u32, newest: u64) -> Result<Readers, StorageError> {
    let fail = |e: std::io::Error| StorageError::io("read the reader table", &e);
    let length = lock.metadata().map_err(fail)?.len();
    let table_bytes = slots as usize * SLOT_BYTES;
    let Some(start) = length.checked_sub(table_bytes as u64) else {
        return Err(StorageError::LockLost { reason: format!("it has only {length} bytes") });
    };
    let mut table = vec![0; table_bytes];
    lock.read_exact_at(&mut table, start).map_err(fail)?;
    let mut readers = Readers::default();
    let mut oldest_transaction = IDLE;
    for slot in table.chunks_exact(SLOT_BYTES) {
        let transaction = slot.first_chunk().map_or(IDLE, |bytes| u64::from_ne_bytes(*bytes));
        let pid = slot.get(8..).and_then(<[u8]>::first_chunk);
        let pid = pid.map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        if pid == 0 || transaction == IDLE {
            continue;
        }
        readers.count += 1;
        if transaction < oldest_transaction {
            oldest_transaction = transaction;
            let transactions_behind = newest.saturating_sub(transaction);
            readers.oldest = Some(OldestReader { pid, transactions_behind });
        }
    }
    Ok(readers)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_transaction_is_the_newest_until_a_commit_has_ended()
    -> Result<(), Box<dyn std::error::Error>> {
        let mut lock = tempfile::tempfile()?;
        lock.write_all(&[0xff; 8])?;
        lock.write_all(&7_u64.to_ne_bytes())?;
        assert_eq!(is_newest(&lock, 7), Ok(true));
        // A commit ended: the next one may write over the page that was copied.
        assert_eq!(is_newest(&lock, 6), Ok(false));
        lock.write_all_at(&0_u64.to_ne_bytes(), NEWEST_AT)?;
        assert_eq!(is_newest(&lock, 6), Ok(true));
        lock.set_len(12)?;
        assert!(is_newest(&lock, 6).is_err());
        Ok(())
    }
}
