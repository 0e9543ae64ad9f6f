"""Writes a GGUF model again with weights in f32.

Weights of fewer bits are multiplied with activations of 8 bits, whose noise is larger than what is compared.

usage: f32.py IN.gguf OUT.gguf
"""

import sys

import gguf
import numpy as np

reader = gguf.GGUFReader(sys.argv[1])
writer = gguf.GGUFWriter(sys.argv[2], reader.get_field("general.architecture").contents())
for field in reader.fields.values():
    if field.name.startswith("GGUF.") or field.name == "general.architecture":
        continue
    if field.name == "general.file_type":
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        continue
    of_array = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
    writer.add_key_value(field.name, field.contents(), field.types[0], of_array)
for tensor in reader.tensors:
    writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
