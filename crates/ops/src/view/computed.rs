//! Values that plans have computed from ACLs. Like the ACLs themselves, they never change.

use types::AclId;

use super::View;
use crate::known::{InheritKey, Key, Value};

impl View<'_> {
    /// The access ACL and the rwx bits that a new file gets by inheritance from the ACL `from`, if this
    /// client has computed them before.
    pub fn inherited(&self, from: AclId, inherit_key: InheritKey) -> Option<(AclId, u32)> {
        match self.known.get(&Key::Inherited(from, inherit_key), None) {
            Some(Value::Inherited(access, rwx)) => Some((access, rwx)),
            _ => None,
        }
    }

    /// Caches the result for [`View::inherited`].
    pub fn remember_inherited(&self, from: AclId, inherit_key: InheritKey, (access, rwx): (AclId, u32)) {
        self.known.put(Key::Inherited(from, inherit_key), Value::Inherited(access, rwx));
    }

    /// The access ACL that results from a chmod of `from` to these rwx bits, if this client has computed it
    /// before.
    pub fn chmod_acl(&self, from: AclId, rwx: u32) -> Option<AclId> {
        match self.known.get(&Key::Chmod(from, rwx), None) {
            Some(Value::Chmod(acl)) => Some(acl),
            _ => None,
        }
    }

    /// Caches the result for [`View::chmod_acl`].
    pub fn remember_chmod_acl(&self, from: AclId, rwx: u32, acl: AclId) {
        self.known.put(Key::Chmod(from, rwx), Value::Chmod(acl));
    }

    /// Whether an access ACL lets everybody search a directory, if this client has computed that before. The
    /// mode of the directory is checked separately.
    pub fn anyone_passes(&self, access: AclId) -> Option<bool> {
        match self.known.get(&Key::Anyone(access), None) {
            Some(Value::Anyone(passes)) => Some(passes),
            _ => None,
        }
    }

    /// Caches the result for [`View::anyone_passes`].
    pub fn remember_anyone_passes(&self, access: AclId, passes: bool) {
        self.known.put(Key::Anyone(access), Value::Anyone(passes));
    }
}
