//! Checks the caller's arguments: pointers with lengths, strings, handles, and structs that carry their size.

use crate::error::{Failure, Result, octaplex_status};
use octaplex::Backend;
use std::ffi::{CStr, c_char};
use std::slice;

const NULL: Failure = Failure::Here(
    octaplex_status::Pointer,
    "a pointer is null: null is allowed if the length is 0, or where the header says so",
);
const UNALIGNED: Failure = Failure::Here(
    octaplex_status::Pointer,
    "a pointer is not aligned for its type: allocate the buffer with that type",
);
const TOO_LONG: Failure =
    Failure::Here(octaplex_status::Length, "a length overflows: no buffer can be that long");

fn check<T>(data: *const T, len: usize) -> Result<()> {
    if data.is_null() {
        return Err(NULL);
    }
    if !data.is_aligned() {
        return Err(UNALIGNED);
    }
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => Err(TOO_LONG),
    }
}

/// Returns the caller's values for reading.
///
/// # Safety
/// `data` has `len` values that nothing changes meanwhile, unless it is null.
pub(crate) unsafe fn values<'a, T>(data: *const T, len: usize) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(data, len)?;
    // SAFETY: the caller's promise; null, alignment and length were checked.
    Ok(unsafe { slice::from_raw_parts(data, len) })
}

/// Returns the caller's values for writing.
///
/// # Safety
/// `data` has `len` initialised values that nothing else reads or changes meanwhile, unless it is null.
pub(crate) unsafe fn values_mut<'a, T>(data: *mut T, len: usize) -> Result<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(data, len)?;
    // SAFETY: the caller's promise; null, alignment and length were checked.
    Ok(unsafe { slice::from_raw_parts_mut(data, len) })
}

/// Writes a result to the caller's place. Null ignores it.
///
/// # Safety
/// `place` is null or the caller's.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Ok(());
    }
    check(place, 1)?;
    // SAFETY: the caller's promise; null and alignment were checked.
    unsafe { place.write(value) };
    Ok(())
}

/// Returns the caller's string, or `None` for null.
///
/// # Safety
/// `text` is null or ends in a zero, and nothing changes it meanwhile.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some).map_err(|_| Failure::Here(octaplex_status::Text, "a string is not UTF-8: pass UTF-8"))
}

/// Returns the backend with this name, or the fastest for null.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn backend(name: *const c_char) -> Result<Backend> {
    const UNKNOWN: Failure = Failure::Here(
        octaplex_status::Text,
        "this CPU or build has no backend of that name: pass one that octaplex_backend_name lists, or null for the fastest",
    );
    // SAFETY: the caller's promise.
    match unsafe { text(name) }? {
        None => Ok(Backend::detect()),
        Some(name) => Backend::named(name).ok_or(UNKNOWN),
    }
}

/// Checks the size of a struct that grows. `sizeof` is a multiple of a word in every header, so other sizes are refused.
/// The alignment of `T` would be too strict on machines of 32 bits: a newer field of 8 bytes may have raised it.
fn check_size<T>(size: usize, least: usize, why: &'static str) -> Result<()> {
    if (least..=4096).contains(&size) && size.is_multiple_of(size_of::<usize>()) {
        return Ok(());
    }
    Err(Failure::Expected(octaplex_status::Struct, why, size_of::<T>()))
}

/// Reads a struct whose first field is its size, so that it can grow. Fields that the caller's header lacks become
/// zeros, which mean the default. Fields that this library does not know must be zeros.
///
/// # Safety
/// `given` is null or begins with a `size_t`, and the caller owns that many bytes. Zeros are a valid `T`.
pub(crate) unsafe fn sized<T: Copy>(given: *const T, least: usize) -> Result<Option<T>> {
    if given.is_null() {
        return Ok(None);
    }
    check(given, 1)?;
    // SAFETY: the caller's promise; the struct begins with its size.
    let size = unsafe { given.cast::<usize>().read() };
    check_size::<T>(
        size,
        least,
        "the struct's size is wrong: set its first field to sizeof its type. In this library that is",
    )?;
    // SAFETY: the struct has `size` bytes.
    let bytes = unsafe { slice::from_raw_parts(given.cast::<u8>(), size) };
    if bytes.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        return Err(Failure::Here(
            octaplex_status::Struct,
            "the struct sets fields that this library does not know: the library is older than the program's header",
        ));
    }
    let mut known = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: both have this many bytes and do not overlap. Zeros and the caller's fields are a valid `T`.
    unsafe {
        known.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), size.min(size_of::<T>()));
        Ok(Some(known.assume_init()))
    }
}

/// Fills in the `size` bytes of a struct that the caller's header knows. The struct's first field stays `size`.
///
/// # Safety
/// `place` is null or has `size` bytes. `T` begins with its size and has no padding that matters.
pub(crate) unsafe fn fill<T: Copy>(place: *mut T, size: usize, least: usize, value: T) -> Result<()> {
    check(place, 1)?;
    check_size::<T>(
        size,
        least,
        "the size is wrong: pass sizeof the struct's type. In this library that is",
    )?;
    // SAFETY: the caller's promise.
    unsafe {
        place.cast::<u8>().write_bytes(0, size);
        let known = size.min(size_of::<T>());
        place.cast::<u8>().copy_from_nonoverlapping((&raw const value).cast(), known);
        place.cast::<usize>().write(size);
    }
    Ok(())
}

/// The value behind a handle. Its first word says which kind it is, and whether it was freed.
///
/// Builds with debug assertions never release a freed handle's few words, so that its use is always an error.
#[derive(Debug)]
pub(crate) struct Held<T> {
    word: u64,
    inside: Option<T>,
}

const FREED: u64 = 0xdead_0c7a_dead_0c7a;

impl<T> Held<T> {
    pub(crate) const fn new(word: u64, inside: T) -> Self {
        Self { word, inside: Some(inside) }
    }

    /// Checks that a handle is of this kind and not freed.
    ///
    /// # Safety
    /// `handle` is null, or of this library and not freed. With debug assertions it may be freed.
    pub(crate) unsafe fn check<'a>(handle: *const Self, word: u64) -> Result<&'a Self> {
        check(handle, 1)?;
        // SAFETY: the caller's promise.
        let held = unsafe { &*handle };
        if held.word == FREED {
            return Err(Failure::Here(
                octaplex_status::Handle,
                "the handle was freed already: create a new one",
            ));
        }
        if held.word != word {
            return Err(Failure::Here(
                octaplex_status::Handle,
                "the handle is of another kind: pass what the create function of this kind returned",
            ));
        }
        Ok(held)
    }

    /// # Safety
    /// As for [`check`](Self::check), and nothing changes it meanwhile.
    pub(crate) unsafe fn get<'a>(handle: *const Self, word: u64) -> Result<&'a T> {
        // SAFETY: the caller's promise.
        unsafe { Self::check(handle, word) }?.inside.as_ref().ok_or(NULL)
    }

    /// # Safety
    /// As for [`check`](Self::check), and nothing uses it meanwhile.
    pub(crate) unsafe fn get_mut<'a>(handle: *mut Self, word: u64) -> Result<&'a mut T> {
        // SAFETY: the caller's promise.
        unsafe {
            Self::check(handle, word)?;
            (*handle).inside.as_mut().ok_or(NULL)
        }
    }

    /// Drops the value.
    ///
    /// # Safety
    /// As for [`get_mut`](Self::get_mut).
    pub(crate) unsafe fn empty(handle: *mut Self, word: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            Self::check(handle, word)?;
            (*handle).word = FREED;
            (*handle).inside = None;
        }
        Ok(())
    }

    /// Drops the value and releases its memory. Null does nothing.
    ///
    /// # Safety
    /// As for [`get_mut`](Self::get_mut). The handle is from a `Box`.
    pub(crate) unsafe fn free(handle: *mut Self, word: u64) -> Result<()> {
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe {
            Self::empty(handle, word)?;
            if !cfg!(debug_assertions) {
                drop(Box::from_raw(handle));
            }
        }
        Ok(())
    }
}
