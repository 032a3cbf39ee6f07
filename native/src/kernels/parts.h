// What each kernel source of one instruction set contributes to its table.
#pragma once

#include "table.h"

namespace octavo::OCTAVO_ISA {

extern const LinearKernels* const linear_kernels[kFormats];
extern const LinearKernels quantized_kernels[kFloat8 - kDTypes];
extern const LinearKernels float8_kernels;
extern const LinearKernels tile_bf16_kernels;  // of instruction sets with tile registers
extern const AttentionKernels attention_kernels[kCacheDTypes];
extern const CacheWrite cache_writes[kCacheDTypes];

void rms_norm(const float* x, const float* weight, int64_t rows, int64_t width, float epsilon, float* y, bool accumulate);
void layer_norm(const float* x, const float* weight, const float* bias, int64_t rows, int64_t width, float epsilon,
                float* y);
void soft_cap(float* x, int64_t count, float cap);
void put_scaled(const float* x, int64_t count, float scale, float* y, bool accumulate);
void silu_and_multiply(const float* x, int64_t rows, int64_t width, float* y);
void rotate(float* row, int64_t heads, int64_t head_size, const float* cos_sin, int64_t rotary, bool interleaved);
BlockSize block_size(int32_t type);
void dequantize(int32_t type, const uint8_t* raw, int64_t blocks, int32_t dtype, void* out);
int64_t sampling_scratch_bytes(int64_t vocab_size);
int64_t sample_row(const octavo_sampling_row& row, void* scratch);
void score_row(const octavo_score& score, void* scratch);

extern const Kernels kernels;

}  // namespace octavo::OCTAVO_ISA
