"""Tensors on a GPU for tests: PyTorch's, or, on a stand-in for HIP's libraries (ci/hip-on-cpu.sh), arrays of this process."""

import os

import numpy as np
import octaplex
import pytest

float32 = np.float32  # results are made by `empty`, as by CuPy's
#: Kernels of the stand-in run in this process, so that its GPU's memory is ours.
STAND_IN = bool(os.environ.get("OCTAPLEX_GPU_STAND_IN"))


def missing():
    """Returns the reason for which no test can run here, or None if they can."""
    try:
        octaplex.Cache(1, 1, 64, 1024, device="cuda:0")
    except octaplex.Error as error:
        return str(error)
    if STAND_IN:
        return None
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return None if torch.cuda.is_available() else "PyTorch sees no GPU"


def need():
    """Skips a file's tests where there is no GPU, unless OCTAPLEX_REQUIRE asks for one."""
    why = missing()
    if why is not None:
        required = {"cuda", "hip"} & set(os.environ.get("OCTAPLEX_REQUIRE", "").split(","))
        if required:
            pytest.fail(f"a GPU is required, but: {why}", pytrace=False)
        pytest.skip(f"no test on a GPU: {why}", allow_module_level=True)


class Array:
    """Memory of the stand-in's GPU."""

    def __init__(self, array):
        self.array = array

    @property
    def shape(self):
        return self.array.shape

    @property
    def __cuda_array_interface__(self):
        found = self.array.__array_interface__
        return {"shape": found["shape"], "typestr": found["typestr"], "data": found["data"], "strides": found["strides"], "version": 3}

    def __getitem__(self, index):
        return Array(self.array[index])

    def copy(self):
        return Array(self.array.copy())


def put(array):
    """An array of float32 or float16 on the GPU."""
    if STAND_IN:
        return Array(np.ascontiguousarray(array).copy())
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def empty(shape, dtype=np.float32):
    """Numbers that nobody wrote."""
    return put(np.full(shape, np.nan, dtype))


def get(tensor):
    """Returns the tensor of the GPU as float32."""
    return tensor.array.astype(np.float32) if STAND_IN else tensor.float().cpu().numpy()


def permuted(tensor, *axes):
    """A view with other strides."""
    return Array(tensor.array.transpose(axes)) if STAND_IN else tensor.permute(*axes)
