//! Reads GGUF files: the kind of a model in one file, or in several that it was split into, and its tensors.

use super::matrix::Matrix;
use crate::failure::{Failure, Result, fail, first_line, shown};
use crate::{files, gguf};
use candle_core::Device;
use candle_core::quantized::gguf_file::{Content, TensorInfo, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// An open model.
pub(crate) struct Gguf {
    name: String,
    parts: Vec<Part>,
    /// Bytes of all files.
    pub(crate) bytes: u64,
    /// The header of the first file, without tensors.
    pub(crate) content: Content,
    tensors: HashMap<String, Place>,
    /// Checksum of everything read so far.
    checksum: crc32fast::Hasher,
    /// Types of the matrices that have been read, each with the number of its weights.
    types: Vec<(GgmlDType, usize)>,
}

/// An open file.
struct Part {
    file: BufReader<File>,
    /// Offset of its tensors.
    start: u64,
    length: u64,
}

/// The position of a tensor in the file.
struct Place {
    part: usize,
    info: TensorInfo,
    is_read: bool,
}

/// Returns the files of the model whose first file this is, as their names say.
pub(crate) fn files_of(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parts = name.strip_suffix(".gguf").and_then(|name| {
        let (stem, count) = name.rsplit_once("-of-")?;
        Some((stem.strip_suffix("-00001")?, count.parse().ok().filter(|count| *count <= 0xffff)?))
    });
    match parts {
        Some((stem, count)) => {
            (1..=count).map(|number| path.with_file_name(part_name(stem, number, count))).collect()
        }
        None => vec![path.to_owned()],
    }
}

/// Returns the name of a file of a split model.
fn part_name(stem: &str, number: usize, count: usize) -> String {
    format!("{stem}-{number:05}-of-{count:05}.gguf")
}

impl Gguf {
    /// Reads everything except the tensors, and checks that the files have their bytes too.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut checksum = crc32fast::Hasher::new();
        let (part, content) = Part::open(path, &mut checksum)?;
        let mut gguf = Self {
            name: path.display().to_string(),
            bytes: part.length,
            parts: vec![part],
            content,
            tensors: HashMap::new(),
            checksum,
            types: Vec::new(),
        };
        let first = std::mem::take(&mut gguf.content.tensor_infos);
        gguf.add(0, first)?;
        for (path, number) in gguf.further_parts(path)?.iter().zip(1..) {
            let (part, content) = Part::open(path, &mut gguf.checksum)?;
            if content.metadata.get("split.no").and_then(count) != Some(number) {
                fail!("{}: not file {} of the model in {}", path.display(), number + 1, gguf.name);
            }
            gguf.bytes += part.length;
            gguf.parts.push(part);
            gguf.add(gguf.parts.len() - 1, content.tensor_infos)?;
        }
        match gguf.optional_count("split.tensors.count")? {
            Some(count) if count != gguf.tensors.len() => {
                gguf.refuse(format!("its files have {} tensors in place of {count}", gguf.tensors.len()))
            }
            _ => Ok(gguf),
        }
    }

    fn add(&mut self, part: usize, tensors: HashMap<String, TensorInfo>) -> Result<()> {
        for (name, info) in tensors {
            let place = Place { part, info, is_read: false };
            if self.tensors.insert(name.clone(), place).is_some() {
                return self.refuse(format!("two of its files have the tensor {}", shown(&name)));
            }
        }
        Ok(())
    }

    /// Opens the other files of a split model: `NAME-00002-of-00003.gguf` and so on.
    fn further_parts(&self, path: &Path) -> Result<Vec<PathBuf>> {
        let count = match self.optional_count("split.count")? {
            None | Some(0 | 1) => return Ok(Vec::new()),
            Some(count @ ..=0xffff) => count,
            Some(count) => return self.refuse(format!("split.count is {count}")),
        };
        let number = self.optional_count("split.no")?.unwrap_or(0).saturating_add(1);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Some(stem) = name.strip_suffix(&part_name("", 1, count)).filter(|_| number == 1) else {
            return self.refuse(format!(
                "file {number} of a model in {count}; give the first, whose name ends in {}",
                part_name("", 1, count)
            ));
        };
        Ok((2..=count).map(|number| path.with_file_name(part_name(stem, number, count))).collect())
    }

    /// Returns the checksum of the headers and of all tensors read. It tells two models of the same sizes apart.
    pub(crate) fn checksum(&self) -> u32 {
        self.checksum.clone().finalize()
    }

    /// Returns the type of most of the weights read.
    pub(crate) fn weight_type(&self) -> GgmlDType {
        self.types.iter().max_by_key(|(_, count)| *count).map_or(GgmlDType::F32, |(dtype, _)| *dtype)
    }

    /// Puts the file's name before a failure.
    pub(crate) fn refuse<T>(&self, why: impl std::fmt::Display) -> Result<T> {
        Err(Failure(format!("{}: {why}", self.name)))
    }

    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.content.metadata.get(key)
    }

    /// Returns the names of all entries that begin like this, in order.
    pub(crate) fn keys(&self, start: &str) -> Vec<&str> {
        let keys = self.content.metadata.keys().map(String::as_str);
        let mut keys: Vec<_> = keys.filter(|key| key.starts_with(start)).collect();
        keys.sort_unstable();
        keys
    }

    /// Reads an entry that the file may leave out. An entry of another kind is an error.
    fn optional<'a, T>(
        &'a self,
        key: &str,
        kind: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.value(key) {
            None => Ok(None),
            Some(value) => match read(value) {
                None => self.refuse(format!("{key} is not {kind}")),
                read => Ok(read),
            },
        }
    }

    pub(crate) fn optional_text(&self, key: &str) -> Result<Option<&str>> {
        self.optional(key, "a text", |value| value.to_string().ok().map(String::as_str))
    }

    pub(crate) fn optional_bool(&self, key: &str) -> Result<Option<bool>> {
        self.optional(key, "true or false", |value| value.to_bool().ok())
    }

    /// Reads a count that the file may leave out.
    pub(crate) fn optional_count(&self, key: &str) -> Result<Option<usize>> {
        self.optional(key, "a count", count)
    }

    /// Reads a count that must exist and is at least 1.
    pub(crate) fn count(&self, key: &str) -> Result<usize> {
        self.checked_count(key, self.optional_count(key)?)
    }

    /// Does the same for a count that files may have for each layer. All layers must have the same.
    pub(crate) fn count_of_layers(&self, key: &str, layers: usize) -> Result<usize> {
        let Some(Value::Array(list)) = self.value(key) else { return self.count(key) };
        let Some(counts) = list.iter().map(count).collect::<Option<Vec<_>>>() else {
            return self.refuse(format!("{key} is not a list of counts"));
        };
        if counts.len() != layers {
            return self.refuse(format!("{key} has {} counts for {layers} layers", counts.len()));
        }
        if counts.iter().any(|count| *count != counts[0]) {
            return self.refuse(format!("{key} differs between layers, which is not supported"));
        }
        self.checked_count(key, counts.first().copied())
    }

    fn checked_count(&self, key: &str, count: Option<usize>) -> Result<usize> {
        match count {
            Some(count @ 1..=0xff_ffff) => Ok(count),
            Some(count) => self.refuse(format!("{key} is {count}")),
            None => self.refuse(format!("a damaged GGUF file: no {key}")),
        }
    }

    /// Reads a number that the file may leave out; it is finite and not below 0.
    pub(crate) fn optional_number(&self, key: &str) -> Result<Option<f32>> {
        let number = self.optional(key, "a number", |value| match value {
            Value::F64(number) => Some(*number as f32),
            value => value.to_f32().ok(),
        })?;
        match number {
            Some(number) if !(number >= 0.0 && number.is_finite()) => {
                self.refuse(format!("{key} is {number}"))
            }
            number => Ok(number),
        }
    }

    /// Reads a number that must exist; it is finite and above 0.
    pub(crate) fn number(&self, key: &str) -> Result<f32> {
        match self.optional_number(key)? {
            Some(number) if number > 0.0 => Ok(number),
            Some(number) => self.refuse(format!("{key} is {number}")),
            None => self.refuse(format!("a damaged GGUF file: no {key}")),
        }
    }

    pub(crate) fn optional_list(&self, key: &str) -> Result<Option<&Vec<Value>>> {
        self.optional(key, "a list", |value| value.to_vec().ok())
    }

    /// Reads a list that must exist.
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
        self.tensors.contains_key(tensor)
    }

    /// Returns the number of outputs of a matrix, if there is one of this name.
    pub(crate) fn outputs(&self, tensor: &str) -> Result<usize> {
        match self.tensors.get(tensor) {
            Some(place) => Ok(place.info.shape.dims().first().copied().unwrap_or(0)),
            None => self.refuse(format!("a damaged GGUF file: no tensor {tensor}")),
        }
    }

    /// Returns the first by name of the tensors that were never read.
    pub(crate) fn unread(&self) -> Option<&str> {
        let unread = self.tensors.iter().filter(|(_, place)| !place.is_read);
        unread.map(|(name, _)| name.as_str()).min()
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<QTensor> {
        let Some(place) = self.tensors.get_mut(name) else {
            return self.refuse(format!("a damaged GGUF file: no tensor {name}"));
        };
        place.is_read = true;
        let (info, part) = (&place.info, &mut self.parts[place.part]);
        if info.shape.dims() != shape {
            let dims = info.shape.dims().to_vec();
            return self.refuse(format!("a damaged GGUF file: {name} is {dims:?}, not {shape:?}"));
        }
        let tensor = info.read(&mut part.file, part.start, &Device::Cpu);
        let tensor = tensor.or_else(|error| self.refuse(format!("{name}: {}", first_line(&error))))?;
        match tensor.data() {
            Ok(bytes) => self.checksum.update(&bytes),
            Err(error) => return self.refuse(format!("{name}: {}", first_line(&error))),
        }
        Ok(tensor)
    }

    /// Reads a vector in f32.
    pub(crate) fn vector(&mut self, name: &str, length: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(name, &[length])?;
        let values = tensor.dequantize(&Device::Cpu).and_then(|tensor| tensor.to_vec1());
        values.or_else(|error| self.refuse(format!("{name}: {}", first_line(&error))))
    }

    /// Reads a vector that not all models have.
    pub(crate) fn optional_vector(&mut self, name: &str, length: usize) -> Result<Option<Vec<f32>>> {
        if self.has(name) { self.vector(name, length).map(Some) } else { Ok(None) }
    }

    /// Reads a matrix that maps `inputs` values to `outputs`.
    pub(crate) fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Matrix> {
        let weight = self.tensor(name, &[outputs, inputs])?;
        match self.types.iter_mut().find(|(dtype, _)| *dtype == weight.dtype()) {
            Some((_, count)) => *count += outputs * inputs,
            None => self.types.push((weight.dtype(), outputs * inputs)),
        }
        Matrix::new(weight, inputs).or_else(|error| self.refuse(format!("{name}: {}", first_line(&error))))
    }
}

/// Returns an integer of any width that is not negative.
fn count(value: &Value) -> Option<usize> {
    match *value {
        Value::I8(count) => count.try_into().ok(),
        Value::I16(count) => count.try_into().ok(),
        Value::I32(count) => count.try_into().ok(),
        Value::I64(count) => count.try_into().ok(),
        Value::Bool(_) => None,
        ref value => value.to_u64().ok()?.try_into().ok(),
    }
}

impl Part {
    /// Opens a file, reads its header, and adds the header to the checksum.
    fn open(path: &Path, checksum: &mut crc32fast::Hasher) -> Result<(Self, Content)> {
        let name = path.display();
        let at_path = |error: &std::io::Error| files::at_path(path, error);
        let mut file = BufReader::new(files::open_regular(path)?.0);
        let length = file.seek(SeekFrom::End(0)).map_err(|error| at_path(&error))?;
        file.rewind().map_err(|error| at_path(&error))?;
        let named = |Failure(why)| Failure(format!("{name}: {why}"));
        // Candle trusts what this checks.
        gguf::read(&mut file, length).map_err(named)?;
        file.rewind().map_err(|error| at_path(&error))?;
        let content = Content::read(&mut file).map_err(|error| {
            Failure(format!("{name}: a truncated or damaged GGUF file: {}", first_line(&error)))
        })?;
        check_tensors(&content, length).map_err(named)?;
        let (start, mut header) = (content.tensor_data_offset, Vec::new());
        file.rewind().map_err(|error| at_path(&error))?;
        file.by_ref().take(start).read_to_end(&mut header).map_err(|error| at_path(&error))?;
        checksum.update(&header);
        Ok((Self { file, start, length }, content))
    }
}

/// Checks that a file has the bytes of its tensors, and that no two tensors share any. Then reading takes no more memory
/// than the file has bytes.
fn check_tensors(content: &Content, length: u64) -> Result<()> {
    let mut places = Vec::new();
    for (name, info) in &content.tensor_infos {
        let dims = info.shape.dims();
        let values = dims.iter().fold(1, |values: u64, &dim| values.saturating_mul(dim as u64));
        let bytes =
            (values / info.ggml_dtype.block_size() as u64).saturating_mul(info.ggml_dtype.type_size() as u64);
        let start = content.tensor_data_offset.saturating_add(info.offset);
        let end = start.saturating_add(bytes);
        if end > length {
            fail!("a truncated GGUF file: {} ends at byte {end}, the file at {length}", shown(name));
        }
        places.push((start, end, name));
    }
    places.sort_unstable();
    for pair in places.windows(2) {
        let [(_, end, first), (start, _, second)] = pair else { continue };
        if start < end {
            fail!("a damaged GGUF file: {} and {} overlap", shown(first), shown(second));
        }
    }
    Ok(())
}
