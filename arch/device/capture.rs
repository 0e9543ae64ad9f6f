//! Decode steps that are captured as graphs, launched and measured.

use super::driver::{Graph, Kernels, time};
use super::failure::Failure;
use super::held::{Held, Work};
use super::paged::{Attention, Paged};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A captured step of decode attention: the same kernels on the same memory at each launch.
#[derive(Debug)]
pub struct Step {
    graph: Graph,
    /// Keeps the memory and the kernels alive.
    used: Vec<(Arc<Held>, Arc<Kernels>, Arc<Work>)>,
}

impl Paged {
    /// Captures a step of each layer, one after the other, as one graph. A launch runs on the queries,
    /// pages and exact tokens of that time.
    ///
    /// # Errors
    /// Errors of the compiler and the driver.
    ///
    /// # Panics
    /// Panics for no layers, for different GPUs, without [`reserve`](Self::reserve), and for biases, whose
    /// number grows with each token.
    pub fn capture(layers: &mut [&mut Self], attention: &Attention) -> Result<Step, Failure> {
        assert!(!attention.biased);
        let mut used = Vec::new();
        for layer in layers.iter_mut() {
            let kernels = layer.kernels(attention.options())?;
            used.push((layer.held.clone(), kernels, layer.work().clone()));
        }
        assert!(layers.iter().all(|layer| layer.device.is(&layers[0].device)));
        let graph = layers[0].device.capture(|stream| {
            let mut each = layers.iter().zip(&used);
            each.try_for_each(|(layer, (_, kernels, _))| layer.step(stream, kernels, attention))
        })?;
        Ok(Step { graph, used })
    }

    /// Returns whether both are on the same device.
    #[must_use]
    pub fn is_on_device_of(&self, other: &Self) -> bool {
        self.device.is(&other.device)
    }

    /// Returns whether a step was captured from this layer since its last [`reserve`](Self::reserve).
    #[must_use]
    pub fn is_of(&self, step: &Step) -> bool {
        step.used
            .iter()
            .any(|(held, _, work)| Arc::ptr_eq(held, &self.held) && Arc::ptr_eq(work, self.work()))
    }

    /// Launches a captured step.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn launch(&mut self, step: &Step) -> Result<(), Failure> {
        // SAFETY: a step keeps the memory that its kernels use.
        unsafe { step.graph.launch() }
    }

    /// Measures `times` launches of a captured step, in microseconds of the GPU's clock.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn time(&mut self, step: &Step, times: usize) -> Result<Vec<f32>, Failure> {
        // SAFETY: as `launch`.
        time(&self.device, times, || unsafe { step.graph.launch() })
    }
}
