//! Reading from a packet, quickly where that can be.

use core::ptr;

use aya_ebpf::programs::sk_buff::SkBuff;

/// Offsets up to here are read straight out of the packet. The verifier wants to know some limit, and no header that
/// every packet has lies behind this one.
const NEAR: usize = 0x1ff;

/// Reads a `T`, made of integers, from `offset`. `None` where the packet ends before.
///
/// Most packets have their headers where the program can look at them itself. The others are read with the kernel's
/// helper, which takes several times as long. No pointer into the packet outlives this, so none is stale when something
/// is written.
#[inline(always)]
pub(crate) fn peek<T: Copy>(skb: &SkBuff, offset: usize) -> Option<T> {
    if offset <= NEAR {
        // SAFETY: reads the context, which belongs to this run of the program.
        let (data, end) = unsafe { ((*skb.skb).data as usize, (*skb.skb).data_end as usize) };
        let at = data + offset;
        if at + size_of::<T>() <= end {
            // SAFETY: that many bytes are there. They may lie askew, which neither the verifier nor the machine minds
            // where the kernel compiles programs.
            return Some(unsafe { ptr::read(at as *const T) });
        }
    }
    skb.load(offset).ok()
}
