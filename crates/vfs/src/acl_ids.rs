//! The ids in ACLs: from those of the volume to those of this machine, and back.

use acl::identity::Id;
use acl::idmap::{Ids, UNMAPPED};
use acl::nfs4::Nfs4Acl;
use acl::posix::PosixAcl;
use ops::Acl;
use types::Errno;

/// Converts an ACL to the ids of this machine. Leaves out entries whose id has no mapping here, and also
/// returns their number.
pub(crate) fn posix_to_local(ids: &Ids, acl: &PosixAcl) -> Result<(PosixAcl, usize), Errno> {
    if !ids.is_mapping() {
        return Ok((acl.clone(), 0));
    }
    Ok(acl.renumbered(|uid| mapped(ids.local_user(uid)), |gid| mapped(ids.local_group(gid)))?)
}

/// Converts an ACL to the ids of the volume.
///
/// # Errors
/// EINVAL if it names an id that has no mapping in the volume.
pub(crate) fn posix_in_volume(ids: &Ids, here: PosixAcl) -> Result<PosixAcl, Errno> {
    if !ids.is_mapping() {
        return Ok(here);
    }
    match here.renumbered(|uid| mapped(ids.user_in_volume(uid)), |gid| mapped(ids.group_in_volume(gid)))? {
        (acl, 0) => Ok(acl),
        _ => Err(Errno::EINVAL),
    }
}

fn mapped(id: u32) -> Option<u32> {
    Some(id).filter(|id| *id != UNMAPPED)
}

/// Converts an ACL to the ids of this machine. Leaves out entries whose id has no mapping here, and also
/// returns their number.
pub(crate) fn nfs4_to_local(ids: &Ids, acl: &Nfs4Acl) -> (Nfs4Acl, usize) {
    if !ids.is_mapping() {
        return (acl.clone(), 0);
    }
    acl.renumbered(|id, is_group| match (id.to_system(), is_group) {
        (None, _) => Some(id),
        // For an id without a mapping here, `Id::system` returns `None`, and the entry is left out.
        (Some(gid), true) => Id::system(ids.local_group(gid)),
        (Some(uid), false) => Id::system(ids.local_user(uid)),
    })
}

/// The number of entries whose id has no mapping here, for [`ops::RequireMappedAcl`].
pub(crate) fn unmapped(ids: &Ids, acl: &Acl) -> Result<usize, Errno> {
    Ok(match acl {
        Acl::Posix(acl) => posix_to_local(ids, acl)?.1,
        Acl::Nfs4(acl) => nfs4_to_local(ids, acl.acl()).1,
    })
}

/// Converts an ACL to the ids of the volume.
///
/// # Errors
/// EINVAL if it names an id that has no mapping in the volume.
pub(crate) fn nfs4_in_volume(ids: &Ids, here: Nfs4Acl) -> Result<Nfs4Acl, Errno> {
    if !ids.is_mapping() {
        return Ok(here);
    }
    let renumbered = here.renumbered(|id, is_group| match (id.to_system(), is_group) {
        (None, _) => Some(id),
        (Some(gid), true) => Id::system(ids.group_in_volume(gid)),
        (Some(uid), false) => Id::system(ids.user_in_volume(uid)),
    });
    if let (acl, 0) = renumbered { Ok(acl) } else { Err(Errno::EINVAL) }
}
