//! The source of the content of pages.

use std::fmt::Debug;

use crate::model::{
    AccessAnswer, AccessEffect, AccessQuery, GarbageSummary, Live, Map, Overview, PermissionChange, Quotas,
    Sessions,
};

/// Why a page has no content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no such file, user or group, or a field is wrong. The text says which one.
    Wrong(String),
    /// The database failed.
    Failed(String),
}

/// Answers all questions of pages. Every answer is bounded, and says where it is cut off.
///
/// # Errors
/// [`Failure`], for all functions.
pub trait Source: Send + Sync + Debug {
    /// The name of the volume, for all pages.
    fn name(&self) -> String;

    fn overview(&self) -> Result<Overview, Failure>;

    /// The usage of a directory and of its entries.
    fn map(&self, path: &[u8]) -> Result<Map, Failure>;

    fn sessions(&self) -> Result<Sessions, Failure>;

    /// The present work of the mounts on this machine.
    fn live(&self) -> Result<Vec<Live>, Failure>;

    fn quotas(&self) -> Result<Quotas, Failure>;

    fn garbage(&self) -> Result<GarbageSummary, Failure>;

    /// The users that can reach a file, and whether the given user can.
    fn access(&self, query: &AccessQuery) -> Result<AccessAnswer, Failure>;

    /// The access that a change of permissions would open and close. Nothing is changed.
    fn effect(&self, query: &AccessQuery, change: &PermissionChange) -> Result<AccessEffect, Failure>;

    /// Users to choose from.
    fn people(&self) -> Vec<String>;
}
