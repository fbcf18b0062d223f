//! The caller of a request: the ids in the request, and its groups and capabilities, which are read only if a
//! decision needs them.

use std::fmt;
use std::sync::{Arc, OnceLock};

use acl::credential::Credential;
use acl::idmap::{Ids, UNMAPPED};
use ops::{Authority, CredentialSource};
use types::{Caps, Errno};

/// The properties of a caller that an access decision may depend on: user, groups and capabilities.
#[derive(Clone, Debug)]
pub struct Identity {
    pub credential: Arc<Credential>,
    /// The capabilities that apply to files of this mount.
    pub caps: Caps,
}

/// Reads the groups and capabilities of a caller, which its request does not contain.
pub trait IdentitySource: Send + Sync + fmt::Debug {
    /// The identity, in ids of the volume, of the thread `pid`, which must still have user `uid` and primary
    /// group `gid` on this machine.
    ///
    /// # Errors
    /// EACCES if the credential cannot be read or does not match: an unknown caller is granted nothing.
    fn identify(&self, uid: u32, gid: u32, pid: u32) -> Result<Identity, Errno>;
}

/// The authority of operations without a caller, and of callers that the kernel has checked with current
/// attributes.
pub(crate) const BY_KERNEL: Authority<'_> = Authority::Kernel { revisions: None };

/// The caller of a request.
#[derive(Debug)]
pub struct Caller<'a> {
    /// The file-system user id, `credentials(7)`, in the volume; [`UNMAPPED`] if it has no mapping.
    pub uid: u32,
    /// The file-system group id, like `uid`.
    pub gid: u32,
    /// The ids on this machine.
    here: (u32, u32),
    /// The thread id; 0 if the thread is in another PID namespace.
    pid: u32,
    /// Whether this mount squashes callers, so that the kernel may know this caller by other ids.
    pub(crate) is_squashed: bool,
    /// Whether the caller is user 0 of this machine and is not squashed.
    pub(crate) is_superuser: bool,
    source: Option<&'a dyn IdentitySource>,
    identity: OnceLock<Result<Identity, Errno>>,
}

impl<'a> Caller<'a> {
    /// A caller with the ids of a request, mapped by `ids`. The rest is read from `source` when it is needed.
    pub fn new(ids: &Ids, uid: u32, gid: u32, pid: u32, source: &'a dyn IdentitySource) -> Self {
        let here = (uid, gid);
        let is_squashed = ids.squash.is_some();
        let is_superuser = uid == 0 && !is_squashed;
        let (uid, gid) = ids.caller(uid, gid);
        let identity = OnceLock::new();
        Caller { uid, gid, here, pid, is_squashed, is_superuser, source: Some(source), identity }
    }

    /// A caller whose complete identity is known.
    pub fn known(identity: Identity) -> Self {
        let cred = identity.credential.cred();
        let (uid, gid) = (cred.uid, cred.gid);
        let is_superuser = uid == 0;
        let identity = OnceLock::from(Ok(identity));
        let here = (uid, gid);
        Caller { uid, gid, here, pid: 0, is_squashed: false, is_superuser, source: None, identity }
    }

    /// The owner and group of inodes that this caller creates.
    ///
    /// # Errors
    /// EOVERFLOW if the user or group has no id in the volume.
    pub(crate) fn owner(&self) -> Result<(u32, u32), Errno> {
        match (self.uid, self.gid) {
            (UNMAPPED, _) | (_, UNMAPPED) => Err(Errno::EOVERFLOW),
            owner => Ok(owner),
        }
    }

    /// The identity with groups and capabilities. The first call reads it, and it stays the same for this
    /// request. Call this only if user and primary group do not decide.
    ///
    /// # Errors
    /// Those of [`IdentitySource::identify`].
    pub fn identity(&self) -> Result<&Identity, Errno> {
        let found = self.identity.get_or_init(|| match self.source {
            Some(source) => source.identify(self.here.0, self.here.1, self.pid),
            None => Err(Errno::EACCES),
        });
        found.as_ref().map_err(|errno| *errno)
    }
}

impl CredentialSource for Caller<'_> {
    fn uid(&self) -> u32 {
        self.uid
    }

    fn gid(&self) -> u32 {
        self.gid
    }

    fn kernel_ids_differ(&self) -> bool {
        self.is_squashed
    }

    fn identity(&self) -> Result<(Arc<Credential>, Caps), Errno> {
        let identity = Caller::identity(self)?;
        Ok((Arc::clone(&identity.credential), identity.caps))
    }
}
