"""The package picks the implementation by where the cache lies, and loads without Triton."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from freehold import kernels
from freehold.kernels import NoGpu, NoTriton, paged_decode, paged_extend, reference, write_kv
from freehold.kernels.cases import DecodeCase, ExtendCase, WriteCase, decode_inputs, extend_inputs, write_inputs


def test_on_the_cpu_the_reference_runs():
    shape = {"page_size": 4, "kv_heads": 2, "head_dim": 64}
    case = {**shape, "group": 3, "seq_tokens": (5, 9), "window": 3, "sinks": True}
    decode = decode_inputs(DecodeCase(**case), seed=0)
    expected = reference.paged_decode(*decode.arguments(), **decode.options())
    assert torch.equal(paged_decode(*decode.arguments(), **decode.options()), expected)
    extend = extend_inputs(ExtendCase(**case, extend_tokens=(2, 4)), seed=0)
    expected = reference.paged_extend(*extend.arguments(), **extend.options())
    assert torch.equal(paged_extend(*extend.arguments(), **extend.options()), expected)
    write_case = WriteCase(n=9, **shape, peers=True)
    one, other = write_inputs(write_case, seed=0), write_inputs(write_case, seed=0)
    write_kv(*one.arguments(), peers=one.peers)
    reference.write_kv(*other.arguments(), peers=other.peers)
    assert torch.equal(one.k_cache, other.k_cache)
    assert torch.equal(one.v_cache, other.v_cache)


def test_the_package_loads_and_runs_without_triton():
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "from freehold.kernels import write_kv\n"
        "from freehold.kernels.cases import WriteCase, write_inputs\n"
        "write_kv(*write_inputs(WriteCase(n=3, page_size=4, kv_heads=1, head_dim=64), seed=0).arguments())\n"
        "assert not any(name.startswith('triton.') for name in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_triton_a_cache_on_a_gpu_is_refused_with_advice(monkeypatch):
    monkeypatch.setitem(sys.modules, "freehold.kernels.write_kv_triton", None)
    monkeypatch.setitem(sys.modules, "freehold.kernels.paged_decode_triton", None)
    monkeypatch.setitem(sys.modules, "freehold.kernels.paged_extend_triton", None)
    on_gpu = SimpleNamespace(is_cuda=True)
    with pytest.raises(NoTriton, match="install"):
        write_kv(None, None, on_gpu, None, None)
    with pytest.raises(NoTriton, match="install"):
        paged_decode(None, on_gpu, None, None, None, 1.0)
    with pytest.raises(NoTriton, match="install"):
        paged_extend(None, on_gpu, None, None, None, None, 1.0)


def test_names_stay_functions_after_the_triton_modules_are_loaded():
    pytest.importorskip("triton", reason="Triton has no wheel for this platform")
    import freehold.kernels.paged_decode_triton
    import freehold.kernels.paged_extend_triton
    import freehold.kernels.write_kv_triton  # noqa: F401

    assert callable(kernels.write_kv)
    assert callable(kernels.paged_decode)
    assert callable(kernels.paged_extend)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: the check itself runs below")
def test_the_gpu_check_says_that_there_is_no_gpu(capsys):
    from freehold.kernels import gpu_check

    with pytest.raises(NoGpu, match="no CUDA device"):
        gpu_check.run()
    assert gpu_check.main(["check"]) == gpu_check.main(["sweep"]) == 3
    assert "no GPU" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernels_are_right_on_this_gpu():
    from freehold.kernels import gpu_check

    wrong = [check for check in gpu_check.check_kernels("cuda") if not check.passed]
    assert wrong == []
