//! The way from a directory up to the root, read where it is not known: each step names the next, so it takes a read each.
//! A plan that began anew after each would look at all that is below again and again.

use host::Instant;

use types::Ino;

use crate::cache::{Key, Value};
use crate::driver::{Failure, Meta};
use crate::record::Want;
use crate::view::Fresh;

impl Meta {
    /// Reads what is not known of the directories above `dir`, at most `most` of them; gives how many.
    pub(crate) fn climb(
        &self,
        dir: Ino,
        oldest: Option<Instant>,
        most: u32,
        fresh: &mut Fresh,
    ) -> Result<u32, Failure> {
        // Parents in memory may form a circle, which is found as in `ops/rename.rs`. Here the climb only ends.
        let (mut at, mut mark, mut steps, mut reads) = (dir, dir, 0_u64, 0);
        while at != Ino::ROOT {
            let key = Key::Node(at);
            let parent = match fresh.get(&key).cloned().or_else(|| self.cache.get(&key, oldest)) {
                Some(Value::Node(Some(node))) => node.parent,
                None if reads < most => {
                    let began = Instant::now();
                    let facts = self.retry(|| self.engine.read(&[Want::Node(at)]))?;
                    reads += 1;
                    fresh.extend(self.cache.absorb(&facts, began));
                    let Some(Value::Node(Some(node))) = fresh.get(&key) else { break };
                    node.parent
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
