//! `lab kernel`: a line a feature, for `cargo xtask test --kernel` to read.

use anyhow::Result;
use lb_tests::kernel::Feature;

/// The verb.
pub(crate) fn run() -> Result<()> {
    for feature in Feature::ALL {
        if feature.is_there()? {
            println!("feature {}: yes", feature.name());
        } else {
            println!("feature {}: no: {}", feature.name(), feature.without());
        }
    }
    Ok(())
}
