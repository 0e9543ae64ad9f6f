"""``python -m octaplex.capture`` and ``python -m octaplex.calibrate`` without PyTorch."""

import pytest
from commands import HAS_MODELS, run


@pytest.mark.skipif(HAS_MODELS, reason="PyTorch and transformers are installed")
@pytest.mark.parametrize("name", ["calibrate", "capture"])
def test_without_transformers_it_says_what_to_install(name, tmp_path):
    (tmp_path / "text.txt").write_text("some text")
    done = run(name, "model", "--text", tmp_path / "text.txt", "--out", tmp_path / "x")
    assert done.returncode == 2 and "pip install torch transformers" in done.stderr, done.stderr
