//! `limen bench`: finds the volume of a mount. The benchmarks are in the crate `bench`.

use bench::BenchArgs;
use command::error::CliError;
use meta::Volume;

use crate::url::MetaUrl;

pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    bench::run(args, &volume_of)
}

/// The volume with this URL; `None` if it is in the memory of its mount.
fn volume_of(url: &str) -> Result<Option<Volume>, CliError> {
    match MetaUrl::parse(url)? {
        MetaUrl::Memory(_) => Ok(None),
        url => Ok(Some(url.open_volume()?.1)),
    }
}
