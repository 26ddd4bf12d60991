//! The parts of the kernel that no plane owns: links, cgroups, sysctls, nftables.

pub mod cgroup;
pub mod links;
pub mod nft;
pub mod sysctls;
