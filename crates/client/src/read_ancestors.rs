//! Reads the uncached directories on the path from a directory up to the root, before the operation is
//! planned again. Each directory names only its parent, so each takes a read of its own. If the operation
//! were planned after each read, each plan would check all directories that are already read, so the cost
//! would be quadratic in the depth.

use host::Instant;

use meta::RecordKey;
use ops::{Key, KnownRecords, OwnReads, Value};
use types::Ino;

use crate::driver::Meta;
use crate::failure::Failure;

impl Meta {
    /// Reads the uncached directories from `dir` up to the root, at most `most` of them. Returns how many
    /// were read.
    pub(crate) fn read_ancestors(
        &self,
        dir: Ino,
        oldest: Option<Instant>,
        most: u32,
        fresh: &mut OwnReads,
    ) -> Result<u32, Failure> {
        // Cached parents may form a cycle, which Brent's algorithm detects, as in `ops/src/rename.rs`. Here a
        // cycle only ends the loop.
        let (mut at, mut mark, mut steps, mut reads) = (dir, dir, 0_u64, 0);
        while at != Ino::ROOT {
            let key = Key::Inode(at);
            let parent = match fresh.get(&key).cloned().or_else(|| self.known().get(&key, oldest)) {
                Some(Value::Inode(Some(inode))) => inode.parent,
                None if reads < most => {
                    fresh.extend(self.read_records(&[RecordKey::Inode(at)], true)?.0);
                    reads += 1;
                    let Some(Value::Inode(Some(inode))) = fresh.get(&key) else { break };
                    inode.parent
                }
                _ => break,
            };
            at = parent;
            if at == mark {
                break;
            }
            steps += 1;
            if steps.is_power_of_two() {
                mark = at;
            }
        }
        Ok(reads)
    }
}
