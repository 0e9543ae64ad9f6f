//! Windows.

use core::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use windows_sys::Win32::Foundation::HMODULE;
use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN,
    GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT, GetModuleHandleA, GetModuleHandleExA, GetProcAddress,
};
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_RELEASE, MEM_RESERVE, MEMORY_BASIC_INFORMATION, PAGE_EXECUTE_READWRITE,
    PAGE_EXECUTE_WRITECOPY, PAGE_READWRITE, PAGE_WRITECOPY, VirtualAlloc, VirtualFree, VirtualQuery,
};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

/// A loaded library, and those that it imports, breadth first.
pub(crate) struct Libraries(Vec<HMODULE>);

impl Libraries {
    /// Returns the library that contains an address, or the whole program.
    pub(crate) fn of(address: *const c_void) -> Option<Self> {
        let mut first = base_of(address as usize) as HMODULE;
        if first.is_null() {
            // SAFETY: without a name, this is the program.
            first = unsafe { GetModuleHandleA(null()) };
        }
        if first.is_null() {
            return None;
        }
        let (mut found, mut next) = (vec![first], 0);
        while let Some(library) = found.get(next) {
            next += 1;
            for import in imports(*library) {
                if !found.contains(&import) {
                    found.push(import);
                }
            }
        }
        Some(Self(found))
    }

    /// Returns a function's address, or null.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the libraries are loaded, the name ends with a zero.
        let look_up = |library: &HMODULE| unsafe { GetProcAddress(*library, name.as_ptr().cast()) };
        self.0.iter().find_map(look_up).map_or(null_mut(), |found| found as *mut c_void)
    }

    /// Finds an OpenMP runtime among the libraries of this process. Only GCC's has `GOMP_parallel` on Windows.
    pub(crate) fn openmp() -> Option<Self> {
        // SAFETY: the name ends with a zero.
        let library = unsafe { GetModuleHandleA(c"libgomp-1.dll".as_ptr().cast()) };
        (!library.is_null()).then(|| Self(vec![library]))
    }
}

/// Returns the libraries that a loaded library imports functions from.
///
/// ```text
/// base + 0x3c          offset of the header "PE\0\0": 4 bytes, 20 bytes about the file, then the optional header
/// optional + 112 + 8   offset of the table of imports (+ 96 + 8 in 32-bit libraries)
/// a row of 20 bytes    +12 offset of the library's name, or 0 after the last row; +16 offset of the functions' addresses
/// ```
fn imports(library: HMODULE) -> Vec<HMODULE> {
    let base: *const u8 = library.cast();
    // SAFETY: the loader has mapped the library with all headers and tables, and filled in the functions' addresses.
    let word = |offset: usize| unsafe { base.add(offset).cast::<u32>().read_unaligned() as usize };
    let directories = word(0x3c) + 24 + if cfg!(target_pointer_width = "64") { 112 } else { 96 };
    let table = word(directories + 8);
    let mut found = Vec::new();
    if table == 0 {
        return found;
    }
    for row in (table..).step_by(20).take_while(|row| word(row + 12) != 0) {
        // SAFETY: as above; a row has at least one address, or a null at its end.
        let address = unsafe { base.add(word(row + 16)).cast::<usize>().read_unaligned() };
        let import = base_of(address) as HMODULE;
        if !import.is_null() {
            found.push(import);
        }
    }
    found
}

fn module(address: usize, flags: u32) -> HMODULE {
    let mut found = null_mut();
    // SAFETY: with this flag the call takes any address. It writes `found`.
    let done = unsafe {
        GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | flags, address as *const u8, &mut found)
    };
    if done == 0 { null_mut() } else { found }
}

/// Returns where the library begins that contains an address, or 0.
pub(crate) fn base_of(address: usize) -> usize {
    if address == 0 {
        return 0;
    }
    module(address, GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT) as usize
}

/// Keeps the library that contains an address in memory after the host unloads it.
pub(crate) fn keep_loaded(inside: *const c_void) {
    module(inside as usize, GET_MODULE_HANDLE_EX_FLAG_PIN);
}

/// Reserves address space, or returns null.
pub(crate) fn reserve(size: usize) -> *mut c_void {
    // SAFETY: this reserves a range at any address.
    unsafe { VirtualAlloc(null(), size, MEM_RESERVE, PAGE_READWRITE) }
}

/// Makes reserved memory usable. The system counts it against its limit from then on, whether it is used or not.
///
/// # Safety
/// The range lies in a reservation.
pub(crate) unsafe fn commit(base: *mut c_void, size: usize) -> bool {
    // SAFETY: see above. Committed memory stays as it is.
    !unsafe { VirtualAlloc(base, size, MEM_COMMIT, PAGE_READWRITE) }.is_null()
}

/// Gives a reservation back.
///
/// # Safety
/// `reserve` returned it, and nothing uses it any more.
pub(crate) unsafe fn release(base: *mut c_void, _: usize) {
    // SAFETY: see above. The size must be 0: the whole reservation is released.
    unsafe { VirtualFree(base, 0, MEM_RELEASE) };
}

/// Returns whether memory at an address may be written.
pub(crate) fn is_writable(address: usize) -> bool {
    const WRITABLE: u32 = PAGE_READWRITE | PAGE_WRITECOPY | PAGE_EXECUTE_READWRITE | PAGE_EXECUTE_WRITECOPY;
    // SAFETY: an all-zero info is valid. The call takes any address, and writes at most the info's size.
    unsafe {
        let mut info: MEMORY_BASIC_INFORMATION = core::mem::zeroed();
        let written = VirtualQuery(address as *const c_void, &mut info, size_of_val(&info));
        written != 0 && info.State == MEM_COMMIT && info.Protect & WRITABLE != 0
    }
}

/// Returns the free and all bytes of the machine's memory.
pub(crate) fn physical_memory() -> (usize, usize) {
    // SAFETY: an all-zero status is valid, and its length says which version it is.
    let status = unsafe {
        let mut status: MEMORYSTATUSEX = core::mem::zeroed();
        status.dwLength = size_of::<MEMORYSTATUSEX>() as u32;
        GlobalMemoryStatusEx(&mut status);
        status
    };
    let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
    (bytes(status.ullAvailPhys), bytes(status.ullTotalPhys))
}
