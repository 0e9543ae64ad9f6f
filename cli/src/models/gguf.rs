//! GGUF files: what kind of model is in one, and its tensors.

use crate::failure::{Failure, Result, fail};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{Device, Storage, Tensor};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

/// An open model file.
pub(crate) struct Gguf {
    name: String,
    file: BufReader<File>,
    pub(crate) bytes: u64,
    pub(crate) content: Content,
    /// Of all that has been read so far.
    checksum: crc32fast::Hasher,
}

/// A message of candle's without its trace.
pub(crate) fn first_line(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or("").to_owned()
}

impl Gguf {
    /// Reads everything but the tensors, and checks that the file has these too.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| crate::files::at_path(path, &error))?;
        let mut file = BufReader::new(file);
        let mut magic = [0; 4];
        if file.read_exact(&mut magic).is_err() || magic != *b"GGUF" {
            fail!("{name}: not a GGUF file");
        }
        let damaged = |error: &dyn std::fmt::Display| {
            Failure(format!("{name}: a truncated or damaged GGUF file: {}", first_line(&error)))
        };
        file.rewind().map_err(|error| damaged(&error))?;
        let content = Content::read(&mut file).map_err(|error| damaged(&error))?;
        let length = file.seek(SeekFrom::End(0)).map_err(|error| damaged(&error))?;
        for (tensor, info) in &content.tensor_infos {
            let values =
                info.shape.dims().iter().fold(1, |values: u64, &dim| values.saturating_mul(dim as u64));
            let end = (values / info.ggml_dtype.block_size() as u64)
                .saturating_mul(info.ggml_dtype.type_size() as u64)
                .saturating_add(content.tensor_data_offset.saturating_add(info.offset));
            if end > length {
                fail!("{name}: a truncated GGUF file: {tensor} ends at byte {end}, the file at {length}");
            }
        }
        let (mut header, mut checksum) = (Vec::new(), crc32fast::Hasher::new());
        file.rewind().map_err(|error| damaged(&error))?;
        let read = file.by_ref().take(content.tensor_data_offset).read_to_end(&mut header);
        read.map_err(|error| damaged(&error))?;
        checksum.update(&header);
        Ok(Self { name, file, bytes: length, content, checksum })
    }

    /// Of the header and the tensors that were read: what tells two models of the same sizes apart.
    pub(crate) fn checksum(&self) -> u32 {
        self.checksum.clone().finalize()
    }

    /// The same failure, with the file's name before it.
    pub(crate) fn refuse<T>(&self, why: impl std::fmt::Display) -> Result<T> {
        Err(Failure(format!("{}: {why}", self.name)))
    }

    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.content.metadata.get(key)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.value(key).and_then(|value| value.to_string().ok()).map(String::as_str)
    }

    /// A count that the file may leave out.
    pub(crate) fn optional_count(&self, key: &str) -> Option<usize> {
        self.value(key).and_then(|value| value.to_u64().ok()).and_then(|count| usize::try_from(count).ok())
    }

    /// A count that must be there and is at least 1.
    pub(crate) fn count(&self, key: &str) -> Result<usize> {
        match self.optional_count(key) {
            Some(count @ 1..=0xff_ffff) => Ok(count),
            Some(count) => self.refuse(format!("{key} is {count}")),
            None if self.value(key).is_some() => self.refuse(format!("{key} is not a count")),
            None => self.refuse(format!("a damaged GGUF file: no {key}")),
        }
    }

    /// A number that must be there, is finite and above 0.
    pub(crate) fn number(&self, key: &str) -> Result<f32> {
        match self.value(key).and_then(|value| value.to_f32().ok()) {
            Some(number) if number > 0.0 && number.is_finite() => Ok(number),
            Some(number) => self.refuse(format!("{key} is {number}")),
            None => self.refuse(format!("a damaged GGUF file: no {key}")),
        }
    }

    /// A list that must be there.
    pub(crate) fn list<'a, T>(
        &'a self,
        key: &str,
        item: fn(&'a Value) -> candle_core::Result<T>,
    ) -> Result<Vec<T>> {
        let Some(list) = self.value(key) else {
            return self.refuse(format!("a damaged GGUF file: no {key}"));
        };
        let items = list.to_vec().and_then(|list| list.iter().map(item).collect());
        items.or_else(|error| self.refuse(format!("{key}: {}", first_line(&error))))
    }

    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.content.tensor_infos.contains_key(tensor)
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<QTensor> {
        let Some(info) = self.content.tensor_infos.get(name) else {
            return self.refuse(format!("a damaged GGUF file: no tensor {name}"));
        };
        if info.shape.dims() != shape {
            let dims = info.shape.dims().to_vec();
            return self.refuse(format!("a damaged GGUF file: {name} is {dims:?}, not {shape:?}"));
        }
        let tensor = info.read(&mut self.file, self.content.tensor_data_offset, &Device::Cpu);
        let tensor = tensor.or_else(|error| self.refuse(format!("{name}: {}", first_line(&error))))?;
        match tensor.data() {
            Ok(bytes) => self.checksum.update(&bytes),
            Err(error) => return self.refuse(format!("{name}: {}", first_line(&error))),
        }
        Ok(tensor)
    }

    /// A vector in f32.
    pub(crate) fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(name, &[length])?;
        let values = tensor.dequantize(&Device::Cpu).and_then(|tensor| tensor.to_vec1());
        values.or_else(|error| self.refuse(format!("{name}: {}", first_line(&error))))
    }

    /// A vector that not all models have.
    pub(crate) fn optional_vector(&mut self, name: &str, length: usize) -> Result<Option<Vec<f32>>> {
        if self.has(name) { self.vector(name, length).map(Some) } else { Ok(None) }
    }

    /// A matrix that maps `inputs` values to `outputs`.
    pub(crate) fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Matrix> {
        let weight = Arc::new(self.tensor(name, &[outputs, inputs])?);
        let product = QMatMul::from_arc(weight.clone());
        match product {
            Ok(product) => Ok(Matrix { weight, product, inputs }),
            Err(error) => self.refuse(format!("{name}: {}", first_line(&error))),
        }
    }
}

/// A matrix as the file has it, quantised.
pub(crate) struct Matrix {
    weight: Arc<QTensor>,
    product: QMatMul,
    inputs: usize,
}

/// From so many rows on, products are in f32 on weights that are decoded for this call. With fewer, candle multiplies the
/// quantised weights, its activations rounded to 8 bits: that reads less, but is slower a row.
const DENSE_ROWS: usize = 16;

impl Matrix {
    /// x·Wᵀ for rows of `inputs`.
    pub(crate) fn apply(&self, x: &[f32]) -> Result<Vec<f32>> {
        let rows = x.len() / self.inputs;
        let product = || {
            let x = Tensor::from_slice(x, (rows, self.inputs), &Device::Cpu)?;
            if rows < DENSE_ROWS {
                candle_core::Module::forward(&self.product, &x)?.flatten_all()?.to_vec1()
            } else {
                x.matmul(&self.weight.dequantize(&Device::Cpu)?.t()?)?.flatten_all()?.to_vec1()
            }
        };
        product().map_err(|error| Failure(first_line(&error)))
    }

    /// Decoded once, for many calls.
    pub(crate) fn dense(&self) -> Result<Dense> {
        let weight = self.weight.dequantize(&Device::Cpu);
        let weight = weight.map_err(|error| Failure(first_line(&error)))?;
        Ok(Dense { weight, inputs: self.inputs })
    }

    /// Rows of the matrix, decoded.
    pub(crate) fn rows(&self, rows: &[u32]) -> Result<Vec<f32>> {
        let decoded = || {
            let ids = Tensor::from_slice(rows, rows.len(), &Device::Cpu)?;
            self.weight.embedding(&ids)?.flatten_all()?.to_vec1()
        };
        decoded().map_err(|error| Failure(first_line(&error)))
    }
}

/// A matrix in f32.
pub(crate) struct Dense {
    weight: Tensor,
    inputs: usize,
}

impl Dense {
    /// What `read` makes of x·Wᵀ, for rows of the matrix' width; the product is large, and not copied.
    pub(crate) fn apply<T>(&self, x: &[f32], read: impl FnOnce(&[f32]) -> T) -> Result<T> {
        let product = || {
            let x = Tensor::from_slice(x, (x.len() / self.inputs, self.inputs), &Device::Cpu)?;
            let product = x.matmul(&self.weight.t()?)?;
            let (storage, _) = product.storage_and_layout();
            match &*storage {
                Storage::Cpu(storage) => Ok(read(storage.as_slice()?)),
                _ => candle_core::bail!("the product is not in memory"),
            }
        };
        product().map_err(|error| Failure(first_line(&error)))
    }
}
