"""What the CUDA compiler says of a kernel; it needs no GPU."""

from __future__ import annotations

from importlib import import_module

ARCHITECTURE = "sm_90"


def complaint(text: str, architecture: str = ARCHITECTURE) -> str | None:
    """The first error of NVRTC for this source, on one line; empty where it compiles, null where there is no NVRTC."""
    try:
        nvrtc = import_module("cupy.cuda").nvrtc
        nvrtc.getVersion()
    except (ImportError, RuntimeError):
        return None
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}",))
    except nvrtc.NVRTCError:
        lines = [line for line in nvrtc.getProgramLog(program).splitlines() if "error" in line]
        return " ".join(lines[0].split()) if lines else "it does not compile"
    finally:
        nvrtc.destroyProgram(program)
    return ""
