//! What goes wrong, as a code and a sentence, and the one door through which every call goes: no panic passes it.

use octaplex::Error;
use std::ffi::c_char;
use std::fmt::{Display, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What went wrong, in kind; an `octaplex_error` says it in words. New kinds may come: treat those unknown as errors.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum octaplex_status {
    /// Nothing did.
    Ok = 0,
    /// A null pointer where there must be data, or one that is not aligned for its type.
    Pointer = 1,
    /// A buffer of the wrong length, rows that do not come out even, or a size that overflows or that the machine has no
    /// memory for.
    Length = 2,
    /// A handle that was freed, or is none of this kind.
    Handle = 3,
    /// A struct whose `size` is not one that this library knows.
    Struct = 4,
    /// A NaN or an infinity, or a number that is too large.
    Value = 5,
    /// A spec, name or backend that does not exist; a text that is not UTF-8.
    Text = 6,
    /// A configuration, width or option that the library does not offer.
    Unsupported = 7,
    /// The cache has no room for the tokens.
    Full = 8,
    /// The cache has no tokens to attend to.
    Empty = 9,
    /// Tokens that would be seen were dropped behind a sliding window.
    Dropped = 10,
    /// A layer, head or token that is not there.
    Missing = 11,
    /// Blocks or a snapshot that are damaged, truncated or of another kind.
    Corrupt = 12,
    /// A checksum is another than the table's: this build or machine computes something else.
    Differs = 13,
    /// A fault in the library: please report it. The handle that the call changed should be freed.
    Internal = 14,
}

/// Bytes of a message, the closing zero included.
pub const OCTAPLEX_MESSAGE_BYTES: usize = 508;

/// The last argument of every call that can fail: the caller's own, on its stack; nothing in it is ever freed, and it
/// holds whatever happens to handles. Calls may be given null instead. A call that went well sets `status` to 0 and the
/// message to an empty one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_error {
    /// What went wrong, in kind.
    pub status: octaplex_status,
    /// What was wrong and what to do, in UTF-8, with a closing zero; cut where it is too long.
    pub message: [c_char; OCTAPLEX_MESSAGE_BYTES],
}

/// An error on its way out.
#[derive(Debug)]
pub(crate) enum Failure {
    Library(Error),
    /// Of this interface.
    Here(octaplex_status, &'static str),
    /// The same with a number: what was expected.
    Expected(octaplex_status, &'static str, usize),
    /// About a codec of this name.
    Differs(&'static str),
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl Failure {
    fn status(&self) -> octaplex_status {
        match self {
            Self::Here(status, _) | Self::Expected(status, ..) => *status,
            Self::Differs(_) => octaplex_status::Differs,
            Self::Library(error) => match error {
                Error::NonFinite { .. }
                | Error::Overflow
                | Error::Weight { .. }
                | Error::Row { .. }
                | Error::Page { .. } => octaplex_status::Value,
                Error::Length { .. }
                | Error::Rows { .. }
                | Error::Heads { .. }
                | Error::ProfileShape { .. }
                | Error::Memory { .. } => octaplex_status::Length,
                Error::Missing { .. } => octaplex_status::Missing,
                Error::Corrupt { .. } | Error::Snapshot { .. } => octaplex_status::Corrupt,
                Error::Full { .. } => octaplex_status::Full,
                Error::Dropped { .. } => octaplex_status::Dropped,
                Error::Empty => octaplex_status::Empty,
                Error::UnknownCodec { .. }
                | Error::UnknownKey { .. }
                | Error::Value { .. }
                | Error::Conflict { .. }
                | Error::Profile { .. } => octaplex_status::Text,
                _ => octaplex_status::Unsupported,
            },
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Library(error) => error.fmt(f),
            Self::Here(_, why) => f.write_str(why),
            Self::Expected(_, why, number) => write!(f, "{why} {number}"),
            Self::Differs(codec) => write!(
                f,
                "{codec}: the checksum is another than the table's; this build or machine computes something else"
            ),
        }
    }
}

/// A message as it is written, cut between two characters.
struct Message<'a> {
    bytes: &'a mut [c_char],
    len: usize,
}

impl Write for Message<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = self.bytes.len() - 1 - self.len;
        let fits = text.floor_char_boundary(room.min(text.len()));
        for (to, byte) in self.bytes[self.len..].iter_mut().zip(text[..fits].bytes()) {
            *to = byte as c_char;
        }
        self.len += fits;
        // What follows a cut is no part of the sentence.
        if fits < text.len() { Err(std::fmt::Error) } else { Ok(()) }
    }
}

/// Writes what happened to the caller's error, which may hold anything before.
///
/// # Safety
/// `error` is null or the caller's.
unsafe fn report(error: *mut octaplex_error, failure: Option<&Failure>) -> octaplex_status {
    let status = failure.map_or(octaplex_status::Ok, Failure::status);
    if !error.is_null() && error.is_aligned() {
        // SAFETY: the caller's promise. Bytes may be anything, and are `c_char`; the status is written before it is read.
        unsafe {
            (&raw mut (*error).status).write(status);
            let bytes = &mut (*error).message;
            bytes[0] = 0;
            if let Some(failure) = failure {
                let mut message = Message { bytes, len: 0 };
                // Cut is not lost; nor is what a fault in the sentence itself leaves of it.
                let _ = catch_unwind(AssertUnwindSafe(|| write!(message, "{failure}")));
                message.bytes[message.len] = 0;
            }
        }
    }
    status
}

/// Runs a call's body, reports what went wrong, and says it.
///
/// # Safety
/// `error` is null or the caller's.
unsafe fn pass<T>(
    error: *mut octaplex_error,
    body: impl FnOnce() -> Result<T>,
) -> (octaplex_status, Option<T>) {
    const FAULT: Failure = Failure::Here(
        octaplex_status::Internal,
        "a fault in octaplex: please report it, with what was called",
    );
    // The caller may round otherwise or flush denormals: bits are those of every machine all the same.
    let body = || octaplex::with_default_floats(body);
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(FAULT));
    // SAFETY: the caller's promise.
    let status = unsafe { report(error, result.as_ref().err()) };
    (status, result.ok())
}

/// A call that gives something: `otherwise` where it fails.
///
/// # Safety
/// `error` is null or the caller's.
pub(crate) unsafe fn give<T>(
    error: *mut octaplex_error,
    otherwise: T,
    body: impl FnOnce() -> Result<T>,
) -> T {
    // SAFETY: the caller's promise.
    unsafe { pass(error, body) }.1.unwrap_or(otherwise)
}

/// A call that does something.
///
/// # Safety
/// `error` is null or the caller's.
pub(crate) unsafe fn run(error: *mut octaplex_error, body: impl FnOnce() -> Result<()>) -> octaplex_status {
    // SAFETY: the caller's promise.
    unsafe { pass(error, body) }.0
}
