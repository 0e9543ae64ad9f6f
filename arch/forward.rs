//! Kernels that a backend takes from the specification.

/// Compiles kernels of `scalar.rs` for a backend's instruction set: where LLVM vectorises them as well as
/// intrinsics would, the specification itself is the fast path. `enable` names the features that are not in the
/// target's baseline.
macro_rules! forward_to_scalar {
    (enable = $features:literal; $($kernel:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[target_feature(enable = $features)]
            pub(crate) fn $kernel($($argument: $kind),*) $(-> $result)? {
                $crate::scalar::$kernel($($argument),*)
            }
        )*
    };
    ($($kernel:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        $(
            pub(crate) fn $kernel($($argument: $kind),*) $(-> $result)? {
                $crate::scalar::$kernel($($argument),*)
            }
        )*
    };
}

/// Compiles kernels of `lanes.rs` for one kind of registers.
macro_rules! forward_to_lanes {
    ($lanes:ty; $($kernel:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        $(
            pub(crate) fn $kernel($($argument: $kind),*) $(-> $result)? {
                $crate::lanes::$kernel::<$lanes>($($argument),*)
            }
        )*
    };
}
