//! Decides which records may be cached.

use ops::Key;

/// Whether the record may be cached beyond the operation that read it. Open files cache slices themselves;
/// the other uncacheable records must be read each time.
pub(super) fn is_cacheable(key: &Key) -> bool {
    match key {
        Key::Inode(_)
        | Key::Dirent(..)
        | Key::Listed(_)
        | Key::Xattrs(_)
        | Key::Symlink(_)
        | Key::Acl(_)
        | Key::Mapped(..)
        | Key::Inherited(..)
        | Key::Chmod(..)
        | Key::Projection(..)
        | Key::ModeProjection(..)
        | Key::Anyone(_)
        | Key::Quota(_) => true,
        Key::Empty(_)
        | Key::Slices(..)
        | Key::Settings
        | Key::Counter(_)
        | Key::Usage
        | Key::Locks(_)
        | Key::Waits => false,
    }
}
