//! A function that several test programs use.

use chunk::{BlockStore, ChunkError};

/// Removes a store as `limen destroy` does: the blocks, and then the marker. `progress` is called with the
/// number of objects removed so far.
pub(crate) fn destroy(store: &BlockStore, progress: &mut dyn FnMut(u64)) -> Result<(), ChunkError> {
    store.remove_blocks::<ChunkError>(&mut |count| {
        if count > 0 {
            progress(count);
        }
        Ok(())
    })?;
    store.remove_markers()
}
