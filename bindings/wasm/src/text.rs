//! Text and errors for JavaScript.

use core::cell::UnsafeCell;
use core::fmt::{self, Display, Write};
use octaplex::Error;

const LIMIT: usize = 16384;

struct Text {
    bytes: UnsafeCell<[u8; LIMIT]>,
}

// SAFETY: this build has no threads.
unsafe impl Sync for Text {}

static TEXT: Text = Text { bytes: UnsafeCell::new([0; LIMIT]) };

#[link(wasm_import_module = "host")]
unsafe extern "C" {
    #[link_name = "fail"]
    fn host_fail(length: usize);
}

/// Passes the text to the host, which throws.
pub(crate) fn fail(length: usize) -> ! {
    // SAFETY: a call of a function that takes a number.
    unsafe { host_fail(length) };
    core::arch::wasm32::unreachable()
}

/// An error.
pub(crate) enum Failure {
    Library(Error),
    /// This module lacks the codec, and the module of all codecs has it.
    #[cfg(feature = "specs")]
    Absent(Error),
    /// This many bytes cannot be allocated.
    Memory(u64),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl Failure {
    /// Returns the error of a codec with this spec.
    #[cfg(feature = "specs")]
    pub(crate) fn of(spec: octaplex::CodecSpec, error: Error) -> Self {
        if spec.is_built() { Self::Library(error) } else { Self::Absent(error) }
    }

    const fn error(&self) -> Option<&Error> {
        match self {
            Self::Library(error) => Some(error),
            #[cfg(feature = "specs")]
            Self::Absent(error) => Some(error),
            Self::Memory(_) => None,
        }
    }

    fn code(&self) -> &'static str {
        let Some(error) = self.error() else { return "OutOfMemory" };
        match error {
            Error::NonFinite { .. } => "NonFinite",
            Error::Overflow => "Overflow",
            Error::Weight { .. } => "Weight",
            Error::Length { .. } => "Length",
            Error::Row { .. } => "Row",
            Error::Page { .. } => "Page",
            Error::Missing { .. } => "Missing",
            Error::Capacity { .. } => "Capacity",
            Error::Rows { .. } => "Rows",
            Error::Heads { .. } => "Heads",
            Error::Width { .. } => "Width",
            Error::Corrupt { .. } => "Corrupt",
            Error::Full { .. } => "Full",
            Error::Dropped { .. } => "Dropped",
            Error::Empty => "Empty",
            Error::Snapshot { .. } => "Snapshot",
            Error::Profile { .. } => "Profile",
            Error::ProfileShape { .. } => "ProfileShape",
            Error::UnknownCodec { .. } => "UnknownCodec",
            Error::UnknownKey { .. } => "UnknownKey",
            Error::Value { .. } => "Value",
            Error::Conflict { .. } => "Conflict",
            Error::Unsupported { .. } => "Unsupported",
            _ => "Other",
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(error) => error.fmt(f),
            #[cfg(feature = "specs")]
            Self::Absent(error) => {
                write!(f, "{error}; the module of load({{ codecs: \"all\" }}) has every codec")
            }
            Self::Memory(bytes) => {
                write!(f, "{bytes} bytes more do not fit WebAssembly's memory: dispose of what is done with")
            }
        }
    }
}

/// The result of a function that failed. Lengths and handles are smaller.
pub(crate) const FAILED: usize = usize::MAX;

/// Returns a result as a number.
pub(crate) fn answer(result: Result<usize, Failure>) -> usize {
    result.unwrap_or_else(|failure| {
        write(&format_args!("{}\n{failure}", failure.code()));
        FAILED
    })
}

/// Returns the address of the text: the last error, or the text of the last function that writes one.
#[unsafe(no_mangle)]
pub extern "C" fn text() -> *const u8 {
    TEXT.bytes.get().cast()
}

/// Writes as much of the text as fits, and a zero behind it. Returns its length.
pub(crate) fn write(text: &dyn Display) -> usize {
    struct Sink<'a> {
        bytes: &'a mut [u8],
        len: usize,
    }
    impl Write for Sink<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let end = text.floor_char_boundary(self.bytes.len() - 1 - self.len);
            self.bytes[self.len..self.len + end].copy_from_slice(&text.as_bytes()[..end]);
            self.len += end;
            Ok(())
        }
    }
    // SAFETY: no other function of this module holds the bytes, and formatting a text calls none of them.
    let bytes = unsafe { &mut *TEXT.bytes.get() };
    let mut sink = Sink { bytes, len: 0 };
    let _ = write!(sink, "{text}");
    let len = sink.len;
    bytes[len] = 0;
    len
}
