//! Errors as a status and a sentence, and the wrapper of every call. It lets no panic pass.

use octaplex::Error;
use std::ffi::c_char;
use std::fmt::{Display, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The kind of an error; the message of `octaplex_error` has the details. Treat unknown kinds as errors: later versions
/// may add some.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum octaplex_status {
    /// Success.
    Ok = 0,
    /// A pointer is null but needs data, or is not aligned for its type.
    Pointer = 1,
    /// A buffer has the wrong length, does not hold whole rows, or a size overflows or exceeds the machine's memory.
    Length = 2,
    /// A handle was freed, or is of another kind.
    Handle = 3,
    /// This library does not know the `size` of a struct.
    Struct = 4,
    /// A number is NaN, infinite or too large.
    Value = 5,
    /// A spec, name or backend does not exist, a profile cannot be parsed, or a string is not UTF-8.
    Text = 6,
    /// The library does not support a configuration, width or option.
    Unsupported = 7,
    /// The tokens exceed the cache's capacity.
    Full = 8,
    /// The cache has no tokens.
    Empty = 9,
    /// The sliding window has already dropped tokens that would be visible again: after a long rollback, or because a
    /// block of queries has more than `max_rollback` + 1 tokens.
    Dropped = 10,
    /// The number of a layer, head or token is out of range.
    Missing = 11,
    /// Blocks or a snapshot are damaged, truncated or of another kind.
    Corrupt = 12,
    /// A checksum differs from the published table: this build or machine computes other results.
    Differs = 13,
    /// The library has a bug: please report it. Free the handle that the call changed.
    Internal = 14,
}

/// Bytes in a message, including its terminating zero.
pub const OCTAPLEX_MESSAGE_BYTES: usize = 508;

/// Receives the error of a call, as its last argument. It belongs to the caller, for example on the stack. It stays
/// valid after handles are freed, and nothing in it needs freeing. Pass null to ignore it. Success sets `status` to 0
/// and the message to an empty string.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct octaplex_error {
    /// The kind of the error.
    pub status: octaplex_status,
    /// Says what was wrong and what to do, in UTF-8 with a terminating zero. Long messages are cut.
    pub message: [c_char; OCTAPLEX_MESSAGE_BYTES],
}

/// An error before it becomes an `octaplex_error`.
#[derive(Debug)]
pub(crate) enum Failure {
    Library(Error),
    /// An error of this interface.
    Here(octaplex_status, &'static str),
    /// An error of this interface, with the number that was expected.
    Expected(octaplex_status, &'static str, usize),
    /// The checksum of the codec with this name differs.
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
                "{codec}: the checksum differs from the published table; this build or machine computes other results"
            ),
        }
    }
}

/// A message that is being written. A cut lies between two characters.
struct Message<'a> {
    bytes: &'a mut [c_char],
    len: usize,
}

impl Write for Message<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let left = self.bytes.len() - 1 - self.len;
        let fits = text.floor_char_boundary(left.min(text.len()));
        for (to, byte) in self.bytes[self.len..].iter_mut().zip(text[..fits].bytes()) {
            *to = byte as c_char;
        }
        self.len += fits;
        // After a cut nothing more may follow, or the sentence would have a gap.
        if fits < text.len() { Err(std::fmt::Error) } else { Ok(()) }
    }
}

/// Writes the result to the caller's error, which may be uninitialised.
///
/// # Safety
/// `error` is null or the caller's.
unsafe fn report(error: *mut octaplex_error, failure: Option<&Failure>) -> octaplex_status {
    let status = failure.map_or(octaplex_status::Ok, Failure::status);
    if !error.is_null() && error.is_aligned() {
        // SAFETY: the caller's promise. Any byte is a valid `c_char`, and the status is written before it is read.
        unsafe {
            (&raw mut (*error).status).write(status);
            let bytes = &mut (*error).message;
            bytes[0] = 0;
            if let Some(failure) = failure {
                let mut message = Message { bytes, len: 0 };
                // A cut or a panic leaves the first part of the sentence, which is still of use.
                let _ = catch_unwind(AssertUnwindSafe(|| write!(message, "{failure}")));
                message.bytes[message.len] = 0;
            }
        }
    }
    status
}

/// Runs a call's body, reports its error, and returns its status and result.
///
/// # Safety
/// `error` is null or the caller's.
unsafe fn pass<T>(
    error: *mut octaplex_error,
    body: impl FnOnce() -> Result<T>,
) -> (octaplex_status, Option<T>) {
    const FAULT: Failure = Failure::Here(
        octaplex_status::Internal,
        "octaplex has a bug: please report it, with the call and its arguments",
    );
    // The caller may round differently or flush denormals. Results stay bit-exact in the default environment.
    let body = || octaplex::with_default_floats(body);
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(FAULT));
    // SAFETY: the caller's promise.
    let status = unsafe { report(error, result.as_ref().err()) };
    (status, result.ok())
}

/// Runs a call that returns a value. Returns `otherwise` on failure.
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

/// Runs a call that returns its status.
///
/// # Safety
/// `error` is null or the caller's.
pub(crate) unsafe fn run(error: *mut octaplex_error, body: impl FnOnce() -> Result<()>) -> octaplex_status {
    // SAFETY: the caller's promise.
    unsafe { pass(error, body) }.0
}
