//! What the machine says of its boot.

use std::fs;
use std::sync::OnceLock;

/// The boot-time clock in milliseconds: it does not step, and counts while the machine sleeps.
pub(crate) fn boot_clock_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000
        + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

/// What the kernel calls this boot; zeroes if it does not say. No process outlives its boot, so it is
/// asked for once.
pub(crate) fn boot_id() -> [u8; 16] {
    static ASKED: OnceLock<[u8; 16]> = OnceLock::new();
    *ASKED.get_or_init(ask_boot_id)
}

fn ask_boot_id() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> =
        text.chars().filter_map(|c| c.to_digit(16)).filter_map(|d| u8::try_from(d).ok()).collect();
    std::array::from_fn(|place| {
        let digit = |at: usize| digits.get(at).copied().unwrap_or(0);
        digit(2 * place) << 4 | digit(2 * place + 1)
    })
}
