"""CUDA sources that unpack each format to half precision; they include no header, so that NVRTC alone compiles them."""

from __future__ import annotations

CONVERSIONS = r"""
__device__ float from_half(unsigned short bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ unsigned short to_half(float value)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
"""

AWQ = r"""
extern "C" __global__ void awq(const unsigned int* qweight, const unsigned int* qzeros, const unsigned short* scales,
                               unsigned short* out, int inputs, int outputs, int group)
{
    const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    int words = outputs / 8;
    long long place = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (place >= (long long)inputs * words) return;
    int row = place / words, word = place % words, of_group = row / group;
    unsigned int levels = qweight[place], zeros = qzeros[of_group * words + word];
    for (int i = 0; i < 8; ++i) {
        int column = word * 8 + order[i];
        int level = (int)(levels >> (4 * i) & 15) - (int)(zeros >> (4 * i) & 15);
        out[(long long)row * outputs + column] = to_half(level * from_half(scales[of_group * outputs + column]));
    }
}
"""

GPTQ = r"""
extern "C" __global__ void gptq(const unsigned int* qweight, const unsigned int* qzeros, const unsigned short* scales,
                                const int* g_idx, unsigned short* out, int inputs, int outputs)
{
    long long place = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (place >= (long long)(inputs / 8) * outputs) return;
    int word = place / outputs, column = place % outputs;
    unsigned int levels = qweight[place];
    for (int i = 0; i < 8; ++i) {
        int row = word * 8 + i, of_group = g_idx[row];
        unsigned int zeros = qzeros[of_group * (outputs / 8) + column / 8];
        int level = (int)(levels >> (4 * i) & 15) - (int)((zeros >> (4 * (column % 8)) & 15) + 1);
        out[(long long)row * outputs + column] = to_half(level * from_half(scales[of_group * outputs + column]));
    }
}
"""

FP8 = r"""
extern "C" __global__ void fp8(const unsigned char* codes, float scale, unsigned short* out, long long count)
{
    long long place = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (place >= count) return;
    unsigned int code = codes[place], magnitude = code & 127;
    // The bits of E4M3 moved to where half precision has them are the number over 2 to the 8.
    unsigned short bits = (unsigned short)((code & 128) << 8 | (magnitude == 127 ? 0x7e00 : magnitude << 7));
    out[place] = to_half(from_half(bits) * 256.0f * scale);
}
"""

SOURCES = {"awq": AWQ, "gptq": GPTQ, "fp8": FP8}
"""The kernels by name, each to be preceded by `CONVERSIONS`."""


def source(name: str) -> str:
    """The whole source of a kernel."""
    return CONVERSIONS + SOURCES[name]
