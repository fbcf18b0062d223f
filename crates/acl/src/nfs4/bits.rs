//! The permissions that the bits of a mode stand for.

use super::Mask;

/// The permissions that every class has whatever the mode: to read attributes, named attributes and the ACL,
/// and SYNCHRONIZE.
pub(super) const OF_EVERYONE: Mask =
    Mask::READ_ATTRIBUTES.with(Mask::READ_NAMED_ATTRS).with(Mask::READ_ACL).with(Mask::SYNCHRONIZE);
/// The permissions that the owner has whatever the mode.
pub(super) const OF_OWNER: Mask = OF_EVERYONE
    .with(Mask::WRITE_ATTRIBUTES)
    .with(Mask::WRITE_NAMED_ATTRS)
    .with(Mask::WRITE_ACL)
    .with(Mask::WRITE_OWNER);

/// The permissions that three bits rwx stand for. `w` on a directory includes `DELETE_CHILD`.
pub(super) fn of_bits(rwx: u32, is_dir: bool) -> Mask {
    let bit = |set: bool, mask: Mask| if set { mask } else { Mask::NONE };
    bit(rwx & 4 != 0, Mask::READ_DATA)
        | bit(rwx & 2 != 0, Mask::WRITE_DATA | Mask::APPEND_DATA)
        | bit(rwx & 2 != 0 && is_dir, Mask::DELETE_CHILD)
        | bit(rwx & 1 != 0, Mask::EXECUTE)
}
