//! Unaligned buffers between known values. A kernel that writes next to its output changes these.

use crate::suite::Bits;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

const PAINT: usize = 65;

pub(crate) struct Buffer<T>(Vec<T>);

impl<T: Bits> Buffer<T> {
    pub(crate) fn new(values: &[T]) -> Self {
        let mut buffer = Vec::with_capacity(values.len() + 2 * PAINT);
        buffer.extend((0..PAINT).map(paint::<T>));
        buffer.extend_from_slice(values);
        buffer.extend((0..PAINT).map(paint::<T>));
        Self(buffer)
    }

    /// Returns whether the values next to the buffer are unchanged.
    pub(crate) fn is_intact(&self) -> bool {
        let is_paint = |(i, value): (usize, &T)| value.bits() == paint::<T>(i).bits();
        let (before, rest) = self.0.split_at(PAINT);
        before.iter().enumerate().all(is_paint) && rest[self.len()..].iter().enumerate().all(is_paint)
    }
}

fn paint<T: Bits>(i: usize) -> T {
    T::from_paint(173 * i as u64 + 5)
}

impl<T> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0[PAINT..self.0.len() - PAINT]
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let end = self.0.len() - PAINT;
        &mut self.0[PAINT..end]
    }
}
