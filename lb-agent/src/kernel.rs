//! The parts of the kernel that no plane owns: links, cgroups, sockets, sysctls, nftables.

pub mod cgroup;
pub mod links;
pub mod nft;
pub mod sockets;
pub mod sysctls;
