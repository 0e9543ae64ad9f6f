//! The services of the operating system: loaded libraries, address space, figures of memory.
//!
//! `unix.rs` and `windows.rs` have the same functions. On Unix, `dlsym` looks into a library and all that it imports. Windows
//! looks into one library only, so `windows.rs` walks the imports itself.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;
    use std::ptr::null;

    fn inside() -> *const c_void {
        inside as fn() -> *const c_void as *const c_void
    }

    #[test]
    fn functions_are_found_in_a_library_and_in_what_it_imports() {
        for library in [Libraries::of(inside()), Libraries::of(null())] {
            let library = library.expect("this program is loaded");
            // A function of the C library, which every program imports.
            let name = if cfg!(windows) { c"GetProcAddress" } else { c"malloc" };
            assert!(!library.symbol(name).is_null());
            assert!(library.symbol(c"octaplex_has_no_such_function").is_null());
        }
    }

    #[test]
    fn an_address_belongs_to_a_library_or_to_none() {
        let value = Box::new(0u8);
        assert_ne!(base_of(inside() as usize), 0);
        assert_eq!(base_of(&raw const *value as usize), 0);
        assert_eq!(base_of(0), 0);
    }

    #[test]
    fn reserved_memory_is_zero_and_writable_once_it_is_committed() {
        let size = 1 << 34; // more than many machines have
        let base = reserve(size);
        assert!(!base.is_null());
        // SAFETY: the reservation has this size, and the first page of it is committed.
        unsafe {
            assert!(commit(base, 4096));
            assert_eq!(*base.cast::<u8>().add(4095), 0);
            *base.cast::<u8>() = 1;
            release(base, size);
        }
        assert!(reserve(usize::MAX / 2).is_null());
    }

    #[test]
    fn statics_are_writable_and_code_is_not() {
        static WRITABLE: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(1);
        if cfg!(any(target_os = "linux", windows)) {
            assert!(is_writable(WRITABLE.as_ptr() as usize));
        }
        assert!(!is_writable(inside() as usize));
        assert!(!is_writable(0));
    }

    #[test]
    fn the_machine_has_memory() {
        let (free, all) = physical_memory();
        assert!(0 < free && free <= all);
    }
}
