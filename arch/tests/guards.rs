//! Every kernel on every backend and shape of the suite, with all slices next to protected pages.
//!
//! Slices first end at such a page, then begin behind one. A kernel that accesses memory next to
//! its slices kills this process. `-- --nocapture` shows which one.

#[cfg(unix)]
extern crate alloc;
#[cfg(unix)]
#[path = "buffers/guarded.rs"]
mod buffer;
#[cfg(unix)]
mod suite;

#[cfg(unix)]
mod unix {
    use crate::buffer::{Buffer, SIDE, Side};
    use crate::suite;
    use octaplex_arch::Backend;
    use std::io::Write;
    use std::slice::from_raw_parts;
    use std::thread;

    #[test]
    fn kernels_touch_nothing_but_their_slices() {
        let backends: Vec<_> = Backend::available().collect();
        thread::scope(|scope| {
            for side in [Side::End, Side::Start] {
                let backends = &backends;
                scope.spawn(move || {
                    SIDE.set(side);
                    for (name, check) in suite::checks() {
                        println!("{name}, guards at the {side:?}");
                        assert_eq!(check(backends), Ok(()), "{name}");
                    }
                });
            }
        });
    }

    /// The system refuses to read one byte more than a buffer has, on the side of its guard.
    #[test]
    fn the_guards_are_there() {
        for side in [Side::End, Side::Start] {
            SIDE.set(side);
            let buffer = Buffer::new(&[1u8, 2, 3]);
            let (_reader, mut writer) = std::io::pipe().expect("a pipe");
            let start = if side == Side::End { buffer.as_ptr() } else { buffer.as_ptr().wrapping_sub(1) };
            assert_eq!(writer.write(&buffer).expect("a buffer can be read"), 3);
            // SAFETY: the bytes are only passed to the system, which checks them and returns
            // EFAULT.
            let error = writer.write(unsafe { from_raw_parts(start, 4) });
            assert_eq!(error.ok().filter(|count| *count == 4), None, "{side:?}");
        }
    }
}

/// On other systems this file has no tests. This test says so.
#[cfg(not(unix))]
#[test]
#[ignore = "guard pages are made by mmap, which this system lacks"]
fn kernels_touch_nothing_but_their_slices() {}
