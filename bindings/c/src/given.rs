//! What callers give: pointers with lengths, texts, handles, structs that carry their size. Everything is checked that can be.

use crate::error::{Failure, Result, octaplex_status};
use octaplex::Backend;
use std::ffi::{CStr, c_char};
use std::slice;

const NULL: Failure = Failure::Here(
    octaplex_status::Pointer,
    "a null pointer: only where the length is 0, or the header says so",
);
const UNALIGNED: Failure = Failure::Here(
    octaplex_status::Pointer,
    "a pointer that is not aligned for its type: allocate the buffer as such",
);
const TOO_LONG: Failure =
    Failure::Here(octaplex_status::Length, "a length that no memory has: it overflowed");

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

/// Values that the caller gives to read.
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

/// Values that the caller gives to write.
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

/// Where a result goes; null for nowhere.
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

/// A text; `None` for null.
///
/// # Safety
/// `text` is null or ends in a zero, and nothing changes it meanwhile.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some).map_err(|_| Failure::Here(octaplex_status::Text, "a text that is not UTF-8"))
}

/// A backend's name; the fastest for null.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn backend(name: *const c_char) -> Result<Backend> {
    const UNKNOWN: Failure = Failure::Here(
        octaplex_status::Text,
        "this CPU or build has no backend of that name: octaplex_backend_name lists them, null takes the fastest",
    );
    // SAFETY: the caller's promise.
    match unsafe { text(name) }? {
        None => Ok(Backend::detect()),
        Some(name) => Backend::named(name).ok_or(UNKNOWN),
    }
}

/// A struct that carries its size as its first field, so that it can grow: fields that the caller's header lacks are zeros,
/// which mean the default; those that this library does not know must be zeros.
///
/// # Safety
/// `given` is null or begins with a `size_t`, of so many bytes that the caller owns; zeros are a valid `T`.
pub(crate) unsafe fn sized<T: Copy>(given: *const T, least: usize) -> Result<Option<T>> {
    if given.is_null() {
        return Ok(None);
    }
    check(given, 1)?;
    // SAFETY: the caller's promise; the struct begins with its size.
    let size = unsafe { given.cast::<usize>().read() };
    if size < least || size > 4096 {
        return Err(Failure::Expected(
            octaplex_status::Struct,
            "the struct's first field is its size, sizeof of its type: this library's has",
            size_of::<T>(),
        ));
    }
    // SAFETY: the struct has `size` bytes.
    let bytes = unsafe { slice::from_raw_parts(given.cast::<u8>(), size) };
    if bytes.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        return Err(Failure::Here(
            octaplex_status::Struct,
            "the struct has fields that this library does not know: it is older than the header of the program",
        ));
    }
    let mut known = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: both have so many bytes, and do not overlap; zeros and what the caller filled in are a `T`.
    unsafe {
        known.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), size.min(size_of::<T>()));
        Ok(Some(known.assume_init()))
    }
}

/// Fills in as much of a struct as the caller's header knows, `size` bytes, which it keeps as its size.
///
/// # Safety
/// `place` is null or has `size` bytes of the caller's; `T` begins with its size and has no padding that matters.
pub(crate) unsafe fn fill<T: Copy>(place: *mut T, size: usize, least: usize, value: T) -> Result<()> {
    check(place, 1)?;
    if size < least || size > 4096 {
        return Err(Failure::Expected(
            octaplex_status::Struct,
            "the size given must be sizeof of the struct's type: this library's has",
            size_of::<T>(),
        ));
    }
    // SAFETY: the caller's promise.
    unsafe {
        place.cast::<u8>().write_bytes(0, size);
        let known = size.min(size_of::<T>());
        place.cast::<u8>().copy_from_nonoverlapping((&raw const value).cast(), known);
        place.cast::<usize>().write(size);
    }
    Ok(())
}

/// Something behind a handle. Its first word says what it is, and whether it is still there.
///
/// Builds with debug assertions never give a freed handle's few words back, so that its use is an error and not a riddle.
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

    /// What is behind a handle.
    ///
    /// # Safety
    /// `handle` is null, or came from this library and was not freed (in a build with debug assertions: freed or not).
    pub(crate) unsafe fn check<'a>(handle: *const Self, word: u64) -> Result<&'a Self> {
        check(handle, 1)?;
        // SAFETY: the caller's promise.
        let held = unsafe { &*handle };
        if held.word == FREED {
            return Err(Failure::Here(
                octaplex_status::Handle,
                "the handle was freed before: create another one",
            ));
        }
        if held.word != word {
            return Err(Failure::Here(
                octaplex_status::Handle,
                "the handle is none of this kind: give what its own create function returned",
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

    /// Drops what is inside.
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

    /// Drops what is inside, and gives the memory back; null is nothing to free.
    ///
    /// # Safety
    /// As for [`get_mut`](Self::get_mut); the handle is a `Box`'s.
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
