//! Text that goes out, and how errors do.

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

/// Hands the text to the host, which throws.
pub(crate) fn fail(length: usize) -> ! {
    // SAFETY: a call of a function that takes a number.
    unsafe { host_fail(length) };
    core::arch::wasm32::unreachable()
}

/// What went wrong.
pub(crate) enum Failure {
    Library(Error),
    /// A codec that this module lacks, and that the module of all codecs has.
    #[cfg(feature = "specs")]
    Absent(Error),
    /// So many bytes cannot be had.
    Memory(u64),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl Failure {
    /// What was wrong with a codec of this spec.
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

/// What a function returns when it failed; lengths and handles are below it.
pub(crate) const FAILED: usize = usize::MAX;

/// A result as a number.
pub(crate) fn answer(result: Result<usize, Failure>) -> usize {
    result.unwrap_or_else(|failure| {
        write(&format_args!("{}\n{failure}", failure.code()));
        FAILED
    })
}

/// Where the text lies: that of the last failure, or what the last function that says so has written.
#[unsafe(no_mangle)]
pub extern "C" fn text() -> *const u8 {
    TEXT.bytes.get().cast()
}

/// Writes the text, as much as there is room for, and returns its length. It ends with a zero.
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
    // SAFETY: no other function of this module's holds the bytes, and displaying a text calls none.
    let bytes = unsafe { &mut *TEXT.bytes.get() };
    let mut sink = Sink { bytes, len: 0 };
    let _ = write!(sink, "{text}");
    let len = sink.len;
    bytes[len] = 0;
    len
}
