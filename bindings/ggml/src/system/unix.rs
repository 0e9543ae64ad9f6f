//! Unix: Linux, macOS and others that have `dlsym`.

use core::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

/// A loaded library, and those that it imports.
pub(crate) struct Libraries(*mut c_void);

impl Libraries {
    /// Returns the library that contains an address, or the whole program.
    pub(crate) fn of(address: *const c_void) -> Option<Self> {
        // SAFETY: the name ends with a zero. Without a name, this opens the program.
        let library = unsafe {
            let library = path_of(address)
                .map_or(null_mut(), |path| libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD));
            if library.is_null() { libc::dlopen(null(), libc::RTLD_LAZY) } else { library }
        };
        (!library.is_null()).then_some(Self(library))
    }

    /// Returns a function's address, or null.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the handle is open, the name ends with a zero.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }

    /// Finds an OpenMP runtime among the libraries of this process.
    pub(crate) fn openmp() -> Option<Self> {
        let path = loaded().into_iter().find(|path| {
            let file = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            [&b"libgomp"[..], b"libomp", b"libiomp"].iter().any(|start| file.starts_with(start))
        })?;
        // SAFETY: the path ends with a zero.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!library.is_null()).then_some(Self(library))
    }
}

/// Returns the paths of the libraries of this process.
#[cfg(target_os = "linux")]
fn loaded() -> Vec<std::ffi::CString> {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> i32 {
        // SAFETY: the loader gives a valid info; `found` is the list below.
        let (name, found) = unsafe { ((*info).dlpi_name, &mut *found.cast::<Vec<std::ffi::CString>>()) };
        if !name.is_null() {
            // SAFETY: names end with a zero.
            found.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        0
    }
    let mut found = Vec::new();
    // SAFETY: the callback only reads its arguments and extends `found`.
    unsafe { libc::dl_iterate_phdr(Some(note), core::ptr::from_mut(&mut found).cast()) };
    found
}

/// Returns the paths of the libraries of this process.
#[cfg(target_vendor = "apple")]
#[allow(deprecated, reason = "libc moves these two functions to another crate")]
fn loaded() -> Vec<std::ffi::CString> {
    // SAFETY: names end with a zero. A number beyond the last, as after an unload, gives null.
    let name = |number| unsafe {
        let name = libc::_dyld_get_image_name(number);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_owned())
    };
    // SAFETY: the function has no preconditions.
    (0..unsafe { libc::_dyld_image_count() }).filter_map(name).collect()
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn loaded() -> Vec<std::ffi::CString> {
    Vec::new()
}

fn info(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: an all-zero Dl_info is valid. dladdr takes any address, and fills it in or returns 0.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        (!address.is_null() && libc::dladdr(address, &mut info) != 0).then_some(info)
    }
}

fn path_of(address: *const c_void) -> Option<&'static CStr> {
    let path = info(address)?.dli_fname;
    // SAFETY: the names of loaded libraries end with a zero. The library of the address stays loaded while we use it.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

/// Returns where the library begins that contains an address, or 0.
pub(crate) fn base_of(address: usize) -> usize {
    info(address as *const c_void).map_or(0, |info| info.dli_fbase as usize)
}

/// Keeps the library that contains an address in memory after the host unloads it.
pub(crate) fn keep_loaded(inside: *const c_void) {
    if let Some(path) = path_of(inside) {
        // SAFETY: the path ends with a zero.
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NODELETE) };
    }
}

/// Reserves address space, or returns null.
pub(crate) fn reserve(size: usize) -> *mut c_void {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE);
    // SAFETY: this creates a mapping at any address.
    let base = unsafe { libc::mmap(null_mut(), size, access, kind, -1, 0) };
    if base == libc::MAP_FAILED { null_mut() } else { base }
}

/// Makes reserved memory usable. Here it always is.
///
/// # Safety
/// The range lies in a reservation.
pub(crate) unsafe fn commit(_: *mut c_void, _: usize) -> bool {
    true
}

/// Gives a reservation back.
///
/// # Safety
/// `reserve` returned it for this size, and nothing uses it any more.
pub(crate) unsafe fn release(base: *mut c_void, size: usize) {
    // SAFETY: see above.
    unsafe { libc::munmap(base, size) };
}

/// Returns whether memory at an address may be written.
#[cfg(target_os = "linux")]
pub(crate) fn is_writable(address: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| {
        let Some((range, rest)) = line.split_once(' ') else { return false };
        let Some((first, end)) = range.split_once('-') else { return false };
        let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        rest.as_bytes().get(1) == Some(&b'w') && (number(first)..number(end)).contains(&address)
    })
}

/// Other systems do not say.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_writable(_: usize) -> bool {
    false
}

/// Returns the free and all bytes of the machine's memory. Free bytes are those that a program can take.
pub(crate) fn physical_memory() -> (usize, usize) {
    // SAFETY: sysconf has no preconditions.
    let of = |name| usize::try_from(unsafe { libc::sysconf(name) }).unwrap_or(0);
    let all = of(libc::_SC_PHYS_PAGES).saturating_mul(of(libc::_SC_PAGESIZE));
    (free_memory(of(libc::_SC_PAGESIZE)).unwrap_or(all).min(all), all)
}

/// macOS: free pages, and those whose contents it can give up.
#[cfg(target_vendor = "apple")]
#[allow(deprecated, reason = "libc moves mach_host_self to another crate")]
fn free_memory(page: usize) -> Option<usize> {
    // SAFETY: an all-zero vm_statistics64 is valid. The call writes at most `count` integers of it.
    let found = unsafe {
        let mut found: libc::vm_statistics64 = core::mem::zeroed();
        let mut count = libc::HOST_VM_INFO64_COUNT;
        let status = libc::host_statistics64(
            libc::mach_host_self(),
            libc::HOST_VM_INFO64,
            (&raw mut found).cast(),
            &mut count,
        );
        (status == libc::KERN_SUCCESS).then_some(found)?
    };
    (found.free_count as usize).checked_add(found.inactive_count as usize)?.checked_mul(page)
}

/// Linux: `memory.rs` reads `/proc/meminfo`. Other systems do not say.
#[cfg(not(target_vendor = "apple"))]
fn free_memory(_: usize) -> Option<usize> {
    None
}
