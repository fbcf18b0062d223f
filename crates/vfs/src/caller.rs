//! Who a request comes from: what the request says itself, and all the rest, which is found out only where a decision
//! needs it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use acl::credential::Credential;
use acl::idmap::{Ids, UNMAPPED};
use types::{Caps, Cred, Errno};

/// All that a decision may depend on: user, groups and capabilities.
#[derive(Clone, Debug)]
pub struct Identity {
    pub credential: Arc<Credential>,
    /// The capabilities that hold for files of this mount.
    pub caps: Caps,
}

impl Identity {
    /// As operations take it that have to check by themselves ([`meta::Vouch::Daemon`]).
    pub fn cred(&self) -> Cred {
        let mut cred = self.credential.cred().clone();
        cred.caps = self.caps;
        cred
    }
}

/// Finds out what a request does not say of its caller.
pub trait Identify: Send + Sync + fmt::Debug {
    /// The identity, as the volume knows it, of the thread `pid`, as long as it is here that of user `uid` with primary
    /// group `gid`.
    ///
    /// # Errors
    /// EACCES where that cannot be found out, or is not so: nothing is granted to somebody unknown.
    fn identify(&self, uid: u32, gid: u32, pid: u32) -> Result<Identity, Errno>;
}

/// Who a request comes from.
#[derive(Debug)]
pub struct Caller<'a> {
    /// File-system ids, `credentials(7)`, as the volume knows them; [`UNMAPPED`] for those that it does not know.
    pub uid: u32,
    pub gid: u32,
    /// The same as the kernel has them.
    here: (u32, u32),
    /// The thread's id; 0 where it is in another PID namespace.
    pid: u32,
    /// Taken for somebody else than he is to the kernel, or might be.
    pub(crate) is_squashed: bool,
    /// User 0 of this machine, and taken for that.
    pub(crate) is_superuser: bool,
    source: Option<&'a dyn Identify>,
    identity: OnceLock<Result<Identity, Errno>>,
}

impl<'a> Caller<'a> {
    /// As a request says, and as `ids` have it; the rest comes from `source` if somebody asks for it.
    pub fn new(ids: &Ids, uid: u32, gid: u32, pid: u32, source: &'a dyn Identify) -> Self {
        let here = (uid, gid);
        let is_squashed = ids.squash.is_some();
        let is_superuser = uid == 0 && !is_squashed;
        let (uid, gid) = ids.caller(uid, gid);
        let identity = OnceLock::new();
        Caller { uid, gid, here, pid, is_squashed, is_superuser, source: Some(source), identity }
    }

    /// Of whom everything is known.
    pub fn known(identity: Identity) -> Self {
        let cred = identity.credential.cred();
        let (uid, gid) = (cred.uid, cred.gid);
        let is_superuser = uid == 0;
        let identity = OnceLock::from(Ok(identity));
        let here = (uid, gid);
        Caller { uid, gid, here, pid: 0, is_squashed: false, is_superuser, source: None, identity }
    }

    /// Whose what he makes is: user and group.
    ///
    /// # Errors
    /// EOVERFLOW where the volume knows no such user or group.
    pub(crate) fn owner(&self) -> Result<(u32, u32), Errno> {
        match (self.uid, self.gid) {
            (UNMAPPED, _) | (_, UNMAPPED) => Err(Errno::EOVERFLOW),
            owner => Ok(owner),
        }
    }

    /// Groups and capabilities too. They are found out at the first call and then stay for this request; ask only where
    /// user and primary group leave a question open.
    ///
    /// # Errors
    /// Those of [`Identify::identify`].
    pub fn identity(&self) -> Result<&Identity, Errno> {
        let found = self.identity.get_or_init(|| match self.source {
            Some(source) => source.identify(self.here.0, self.here.1, self.pid),
            None => Err(Errno::EACCES),
        });
        found.as_ref().map_err(|errno| *errno)
    }
}
