"""CUDA sources that read a KV cache in five layouts; they include no header, so that NVRTC alone compiles them.

Every kernel reads the keys and values of each head of each sequence once, sixteen bytes a load, in the order in which
the layout stores them, and leaves one sum per thread: each value times a number that its token and its place in the
head decide, in 32-bit integers. So every layout has to give the same sum per head, to the last bit.
"""

from __future__ import annotations

KEY_TOKEN, KEY_DIM = 2_654_435_761, 40_503
VALUE_TOKEN, VALUE_DIM = 2_246_822_519, 3_266_489_917
"""Odd numbers: a value of token t and dim d counts KEY_TOKEN · t + KEY_DIM · d + 1 times, modulo 2 to the 32."""

THREADS = 128

_NUMBERS = f"""
#define KEY_TOKEN {KEY_TOKEN}u
#define KEY_DIM {KEY_DIM}u
#define VALUE_TOKEN {VALUE_TOKEN}u
#define VALUE_DIM {VALUE_DIM}u
"""

SHARED = r"""
/* Sum of eight values of one token from `dim` on, or of one dim from `token` on. */
__device__ unsigned int along(uint4 load, unsigned int first, unsigned int step)
{
    unsigned int word[4] = {load.x, load.y, load.z, load.w}, sum = 0;
    for (int i = 0; i < 4; ++i) {
        sum += (word[i] & 65535u) * (first + (2 * i) * step) + (word[i] >> 16) * (first + (2 * i + 1) * step);
    }
    return sum;
}

__device__ unsigned int row_of_keys(uint4 load, int token, int dim)
{
    return along(load, token * KEY_TOKEN + dim * KEY_DIM + 1u, KEY_DIM);
}

__device__ unsigned int row_of_values(uint4 load, int token, int dim)
{
    return along(load, token * VALUE_TOKEN + dim * VALUE_DIM + 1u, VALUE_DIM);
}
"""

# {place} is the element that holds the first of eight dims of a token.
_ROWS = r"""
extern "C" __global__ void {name}(const unsigned short* keys, const unsigned short* values, const int* table,
                                  unsigned int* out, int tokens, int heads, int dims, int block, int splits)
{{
    int split = blockIdx.x % splits, head = blockIdx.x / splits % heads, sequence = blockIdx.x / splits / heads;
    int chunks = dims / 8, part = tokens / splits;
    unsigned int sum = 0;
    for (int piece = threadIdx.x; piece < part * chunks; piece += blockDim.x) {{
        int token = split * part + piece / chunks, dim = piece % chunks * 8;
        {page}long long place = {place};
        sum += row_of_keys(*(const uint4*)(keys + place), token, dim);
        sum += row_of_values(*(const uint4*)(values + place), token, dim);
    }}
    out[(long long)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}}
"""

_PAGE = (
    "long long page = table[sequence * (tokens / block) + token / block];\n        int slot = token % block;\n        "
)

_PLACES = {
    "bshd": ("", "(((long long)sequence * tokens + token) * heads + head) * dims + dim"),
    "bhsd": ("", "(((long long)sequence * heads + head) * tokens + token) * dims + dim"),
    "paged_nhd": (_PAGE, "((page * block + slot) * heads + head) * dims + dim"),
    "paged_hnd": (_PAGE, "((page * heads + head) * block + slot) * dims + dim"),
}

# Pages of a head are contiguous: the lanes follow keys as [dims / 8][block][8] and values as [dims][block].
_SPLIT = r"""
extern "C" __global__ void vllm_split(const unsigned short* keys, const unsigned short* values, const int* table,
                                      unsigned int* out, int tokens, int heads, int dims, int block, int splits)
{
    int split = blockIdx.x % splits, head = blockIdx.x / splits % heads, sequence = blockIdx.x / splits / heads;
    int part = tokens / splits, pieces = block * dims / 8;
    unsigned int sum = 0;
    for (int piece = threadIdx.x; piece < part * dims / 8; piece += blockDim.x) {
        int inside = piece % pieces, first = split * part + piece / pieces * block;
        long long page = table[sequence * (tokens / block) + first / block];
        long long place = (page * heads + head) * block * dims + inside * 8;
        int token = first + inside % block, dim = inside / block * 8;
        sum += row_of_keys(*(const uint4*)(keys + place), token, dim);
        token = first + inside % (block / 8) * 8;
        dim = inside / (block / 8);
        sum += along(*(const uint4*)(values + place), token * VALUE_TOKEN + dim * VALUE_DIM + 1u, VALUE_TOKEN);
    }
    out[(long long)blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""

BODIES: dict[str, str] = {
    **{name: _ROWS.format(name=name, page=page, place=place) for name, (page, place) in _PLACES.items()},
    "vllm_split": _SPLIT,
}
"""The kernels by name, to be preceded by `_NUMBERS` and `SHARED`."""

LAYOUT_OF = {
    "bshd": "BSHD",
    "bhsd": "BHSD",
    "paged_nhd": "paged NHD",
    "paged_hnd": "paged HND",
    "vllm_split": "vLLM split",
}
"""The layout that each kernel reads, as the field writes it."""


def preamble() -> str:
    """What every kernel needs before it."""
    return _NUMBERS + SHARED


def source() -> str:
    """All five kernels as one module."""
    return preamble() + "".join(BODIES.values())


def article_source(tokens: int = 2048, heads: int = 32, dims: int = 64) -> str:
    """A kernel with the article's array in shared memory: one sequence, elements of two bytes.

    `float16_t` is no type of CUDA; an unsigned short of the same size stands in for it.
    """
    return (
        'extern "C" __global__ void article(unsigned short* out, int token)\n{\n'
        f"    __shared__ unsigned short kv_cache[1][{tokens}][{heads}][{dims}];\n"
        "    kv_cache[0][token][threadIdx.y][threadIdx.x] = out[token];\n    __syncthreads();\n"
        "    out[threadIdx.x] = kv_cache[0][threadIdx.x][threadIdx.y][0];\n}\n"
    )
