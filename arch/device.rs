//! Pages and attention on a GPU: kernels in `kernels/`, compiled when they are first used; the driver around them; and the
//! memory that they work on. Everything here is safe to call: what a kernel is given is checked before it is launched, and is
//! kept until it has run.

mod bias;
mod block;
mod compile;
mod driver;
mod encode;
mod exchange;
mod failure;
mod given;
mod held;
mod layout;
mod lists;
mod outliers;
mod paged;
mod rows;
mod tables;

pub use block::{Asked, Queries};
pub use driver::{CallerStream, Device};
pub use encode::{AT_ONCE, Refused};
pub use failure::{Failure, Vendor};
pub use given::{DeviceRows, DeviceSlice, Input, Rows};
pub use layout::{Sequence, Shape, WIDTHS};
pub use lists::Outlier;
pub use paged::{Attention, Paged, Step};
pub use tables::{CodeShape, Groups, Rotated, Tables};
