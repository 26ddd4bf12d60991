//! The parts of the kernel that no plane owns: links, addresses, cgroups, sockets, sysctls, nftables, IPVS.

pub mod addresses;
pub(crate) mod capabilities;
pub mod cgroup;
pub mod conntrack;
pub mod dummy;
pub mod ipvs;
pub mod links;
pub(crate) mod netlink;
pub mod netns;
pub mod nft;
pub mod routes;
pub mod sockets;
pub mod sysctls;
