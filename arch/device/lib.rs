//! GPU code of [octaplex](https://docs.rs/octaplex): the driver, memory, pages and attention. **No
//! stability promise; use `octaplex`.**
//!
//! The kernels in `kernels/` are compiled at their first use. Nothing of CUDA or ROCm is needed to build
//! this crate: drivers and compilers are loaded when they are first needed.
//!
//! Everything here is safe to call. Arguments of a kernel are checked before its launch, and kept until it
//! has run.
//!
//! ```text
//! paged, rows, encode, block, exchange    methods of `Paged`: check arguments, fill the parameters of a kernel
//!             │                           layout, tables: sizes and parameters, the same as in kernels/*.cuh
//!             ▼
//! compile     sources ──► image for this GPU, kept on disk
//!             ▼
//! driver      memory, streams, launches, graphs ──► driver/cuda, driver/hip
//! ```

extern crate alloc;

mod bias;
mod block;
mod capture;
mod cells;
mod compile;
mod driver;
mod encode;
mod exchange;
mod failure;
mod held;
mod inputs;
mod layout;
mod lists;
mod outliers;
mod paged;
mod rows;
mod tables;

pub use block::{Queries, QueryBlock};
pub use capture::Step;
pub use cells::{Address, Area, CellAttention, CellPlan, CellPool, MOST_QUERIES, Scratch, Write};
pub use compile::on_compile;
pub use driver::{CallerStream, Device, Recording};
pub use encode::{InvalidRow, ROW_BYTES_AT_ONCE};
pub use failure::{Failure, Vendor};
pub use inputs::{DeviceRows, DeviceSlice, Input, Rows};
pub use layout::{Sequence, Shape, WIDTHS};
pub use lists::Outlier;
pub use paged::{Attention, Paged};
pub use tables::{CodeShape, Groups, Rotated, Tables};
