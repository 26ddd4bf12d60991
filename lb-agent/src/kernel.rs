//! The parts of the kernel that no plane owns: links, addresses, cgroups, sysctls, nftables.

pub mod addresses;
pub mod cgroup;
pub mod links;
mod netlink;
pub mod nft;
pub mod sysctls;
