/* The C ABI of Octavo's CPU kernels. Everything that Python calls is here; nothing else is exported.
 *
 * Every function that returns int gives 0 or one of OCTAVO_*; octavo_last_error() then says what was wrong (per thread).
 * Activations are float32, row-major and contiguous. A result row depends on that row alone: not on the number of rows,
 * nor on the number of threads, nor on how a prompt was cut into steps. The bits differ between instruction sets.
 */
#ifndef OCTAVO_H
#define OCTAVO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OCTAVO_API __attribute__((visibility("default")))
#define OCTAVO_ABI_VERSION 12

enum { OCTAVO_OK = 0, OCTAVO_INVALID = 1, OCTAVO_NO_MEMORY = 2, OCTAVO_OUT_OF_RANGE = 3 };
enum { OCTAVO_FLOAT32 = 0, OCTAVO_BFLOAT16 = 1, OCTAVO_FLOAT16 = 2 };
/* Formats of weights: the dtypes; integers of 8 bits with a scale for each output, and of 4, 5, 6 or 8 bits with scales for
 * groups of inputs, beside activations that are rounded to 16 or 8 bits; the same of E2M1 counted in halves; E4M3 with
 * scales for groups. */
enum {
  OCTAVO_INT8_A16 = 3,
  OCTAVO_INT8_A8 = 4,
  OCTAVO_INT4_A16 = 5,
  OCTAVO_INT4_A8 = 6,
  OCTAVO_GROUPED_INT8_A16 = 7,
  OCTAVO_GROUPED_INT8_A8 = 8,
  OCTAVO_INT5_A16 = 9,
  OCTAVO_INT5_A8 = 10,
  OCTAVO_INT6_A16 = 11,
  OCTAVO_INT6_A8 = 12,
  OCTAVO_FLOAT4_A16 = 13,
  OCTAVO_FLOAT4_A8 = 14,
  OCTAVO_FLOAT8 = 15
};
/* What a code q stands for: scale * (q - 8, 16, 32 or 128), or scale * twice its number (E2M1); scale * (q - zero) with a
 * zero of 8 bits; scale * q + a float16. With OCTAVO_BYTES_AND_FACTORS for a dtype of scales, these and what q begins with
 * are signed bytes by float16 factors, one of each for 256 inputs. */
enum { OCTAVO_BYTES_AND_FACTORS = 3 };
enum { OCTAVO_NO_OFFSET = 0, OCTAVO_ZERO = 1, OCTAVO_LEAST = 2 };
/* Functions of a product's result: gates of as many other outputs, or with OCTAVO_UNGATED added applied to each output. */
enum {
  OCTAVO_NO_ACTIVATION = 0,
  OCTAVO_SILU = 1,
  OCTAVO_GELU = 2,
  OCTAVO_GELU_TANH = 3,
  OCTAVO_RELU = 4,
  OCTAVO_CLAMPED_SILU = 5,
  OCTAVO_UNGATED = 16
};
enum { OCTAVO_SOFTMAX = 0, OCTAVO_SIGMOID = 1 }; /* scores of experts */
enum { /* dtypes of a cache only: int8 with a float32 scale for each token and head, E4M3 saturating at 448 */
  OCTAVO_CACHE_INT8 = 3,
  OCTAVO_CACHE_FLOAT8 = 4
};

typedef struct octavo_context octavo_context; /* an instruction set, a number of threads, scratch memory */
typedef struct octavo_weight octavo_weight;   /* a packed [out, in] matrix with its bias */
typedef struct octavo_cache octavo_cache;     /* keys and values of all layers, in blocks */

OCTAVO_API int octavo_abi_version(void);
OCTAVO_API const char* octavo_last_error(void);

/* 1: compiled in and the processor has it; 0: not. The names, best first: amx, avx512_bf16, avx512, avx2,
 * generic; and amx_emulated, which computes as amx does, slowly, on every processor. */
OCTAVO_API int octavo_isa_supported(const char* isa);
/* 1: compiled in, and small products of it in a child process come out right; 0: not, or the child died. amx is supported
 * only where it passes this. */
OCTAVO_API int octavo_isa_trial(const char* isa);

/* NULL on failure. Contexts share one thread pool, which starts as it is needed and stops with the last context. */
OCTAVO_API octavo_context* octavo_open(const char* isa, int32_t threads);
OCTAVO_API void octavo_close(octavo_context* context);
/* Keeps the pool's worker i on processor cpus[i]; cpus[0] stands for the calling thread, which stays free. Linux only. */
OCTAVO_API int octavo_pin(octavo_context* context, const int32_t* cpus, int64_t count);

/* -- weights --------------------------------------------------------------------------------------------------- */
/* A [out, in] matrix. `group`: inputs that share a scale, a multiple of 16 (E4M3: 32) or 0 for all; 0 in the dtypes and
 * OCTAVO_INT8_A16, 64 (of the activations) in OCTAVO_INT8_A8. `scale`: the dtype of scales, or in groups of 16, 32, ..., 256
 * integers OCTAVO_BYTES_AND_FACTORS; `offset`: what there is beside them. With a gating activation the first half of the
 * outputs is activated and multiplied by the second: octavo_linear then gives out / 2 columns. */
OCTAVO_API octavo_weight* octavo_weight_new(octavo_context* context, int32_t format, int64_t group, int32_t scale,
                                            int32_t offset, int32_t activation, int64_t in, int64_t out);
/* `count` rows of a dtype at outputs `first` and on, in any order, each once. They are rounded to nearest here where the
 * format is not a dtype: to 8 bits with float32 scales of the outputs, or to 4 bits with float16 scales and least values;
 * else dtype and format must be the same. */
OCTAVO_API int octavo_weight_pack(octavo_context* context, octavo_weight* weight, const void* rows, int32_t dtype,
                                  int64_t first, int64_t count);
/* The same of codes [count, in], one byte each, with scales [count, groups], uint8, float16 or int8 offsets [count, groups]
 * or NULL, and float16 factors [count, ceil(in / 256)] (with least values [.., 2]: the scale's and theirs) or NULL. */
OCTAVO_API int octavo_weight_put(octavo_context* context, octavo_weight* weight, const uint8_t* codes, const void* scales,
                                 const void* offsets, const void* factors, int64_t groups, int64_t first,
                                 int64_t count);
/* Column i of the weight is multiplied by input order[i] [in]: each input once. */
OCTAVO_API int octavo_weight_order(octavo_weight* weight, const int32_t* order);
/* Weights of the same input one below the other, whatever their formats; they are used, not copied, and freed after it. */
OCTAVO_API octavo_weight* octavo_weight_stack(const octavo_weight* const* pieces, int64_t count);
OCTAVO_API int octavo_weight_bias(octavo_weight* weight, const float* bias);
OCTAVO_API int64_t octavo_weight_bytes(const octavo_weight* weight);
OCTAVO_API void octavo_weight_free(octavo_weight* weight);

/* GGUF blocks of ggml type number `type` to `count` values of `dtype`, rounded to nearest even. */
OCTAVO_API int octavo_dequantize(octavo_context* context, const void* raw, int64_t raw_bytes, int32_t type, int64_t count,
                                 int32_t dtype, void* out);

/* -- the step -------------------------------------------------------------------------------------------------- */
/* y [rows, out] = x [rows, in] W^T + bias, activated if the weight says so; with a gating activation
 * y [rows, out / 2] = act(gate) * up; with `accumulate`, y += that. */
OCTAVO_API int octavo_linear(octavo_context* context, const octavo_weight* weight, const float* x, int64_t rows, float* y,
                             int32_t accumulate);
/* y [rows, heads * out]: each head's part of x [rows, heads * in] times a weight of its own, all of one shape and format. */
OCTAVO_API int octavo_linear_heads(octavo_context* context, const octavo_weight* const* weights, int64_t heads,
                                   const float* x, int64_t rows, float* y);
/* y [count, width] = the rows of `ids`, times `scale`; with `accumulate`, y += that. */
OCTAVO_API int octavo_embedding(octavo_context* context, const octavo_weight* weight, const int32_t* ids, int64_t count,
                                float scale, float* y, int32_t accumulate);
/* With `accumulate`, y += the result. */
OCTAVO_API int octavo_rms_norm(octavo_context* context, const float* x, const float* weight, int64_t rows, int64_t width,
                               float epsilon, float* y, int32_t accumulate);
/* In place, in each row of x [rows, stride], each of `count` neighbouring runs of `width` columns from `first` on. */
OCTAVO_API int octavo_rms_norm_columns(octavo_context* context, float* x, int64_t rows, int64_t stride, int64_t first,
                                       int64_t count, const float* weight, int64_t width, float epsilon);
/* `bias` may be NULL, and y may be x. */
OCTAVO_API int octavo_layer_norm(octavo_context* context, const float* x, const float* weight, const float* bias,
                                 int64_t rows, int64_t width, float epsilon, float* y);
/* In place: x [rows, width] becomes cap * tanh(x / cap). */
OCTAVO_API int octavo_soft_cap(octavo_context* context, float* x, int64_t rows, int64_t width, float cap);
/* x [rows, 2 * width] -> y [rows, width] */
OCTAVO_API int octavo_silu_and_multiply(octavo_context* context, const float* x, int64_t rows, int64_t width, float* y);
/* routing [rows, experts]: the scores (OCTAVO_SOFTMAX: over the row; OCTAVO_SIGMOID: of each logit) of the `chosen` largest
 * of each row (of equal ones the first), times `scale`, with `normalise` divided by their sum; the others are 0. The choice
 * is by score + bias [experts] (NULL: 0), and within the `chosen_groups` best of `groups` groups of one size, a group being
 * as good as the sum of its `group_best` largest. Where a logit is NaN, those chosen are NaN. */
OCTAVO_API int octavo_route(octavo_context* context, const float* logits, int64_t rows, int64_t experts, int32_t scoring,
                            int64_t groups, int64_t chosen_groups, int64_t group_best, int64_t chosen, int32_t normalise,
                            float scale, const float* bias, float* routing);
/* y [rows, width] = the sum over all experts e, from first to last, of routing[row, e] * down[e](gate_up[e](x)); experts
 * whose routing is 0 are left out. With `accumulate`, y += that. The weights of all experts have one shape and format. */
OCTAVO_API int octavo_experts(octavo_context* context, const octavo_weight* const* gate_up, const octavo_weight* const* down,
                              int64_t experts, const float* x, int64_t rows, int64_t width, const float* routing, float* y,
                              int32_t accumulate);
/* y [count, width] = the rows `indices` of x [rows, width]. */
OCTAVO_API int octavo_select_rows(octavo_context* context, const float* x, int64_t rows, int64_t width,
                                  const int32_t* indices, int64_t count, float* y);

/* x [rows, width] becomes the columns from `first` on of y [rows, stride]. */
OCTAVO_API int octavo_copy_columns(octavo_context* context, const float* x, int64_t rows, int64_t width, float* y,
                                   int64_t stride, int64_t first);

/* -- the cache --------------------------------------------------------------------------------------------------- */
OCTAVO_API octavo_cache* octavo_cache_new(octavo_context* context, int64_t layers, int64_t blocks, int64_t block_size,
                                          int64_t kv_heads, int64_t head_size, int32_t dtype);
OCTAVO_API int64_t octavo_cache_bytes(const octavo_cache* cache);
OCTAVO_API int64_t octavo_cache_block_bytes(const octavo_cache* cache); /* of one block, all layers */
OCTAVO_API int octavo_cache_copy(octavo_cache* cache, const int32_t* pairs, int64_t count);
/* Whole blocks, all layers, between the cache and `host` [slots, block bytes]: pairs of (block, slot), (slot, block). */
OCTAVO_API int octavo_cache_swap_out(const octavo_cache* cache, const int32_t* pairs, int64_t count, char* host,
                                     int64_t slots);
OCTAVO_API int octavo_cache_swap_in(octavo_cache* cache, const int32_t* pairs, int64_t count, const char* host,
                                    int64_t slots);
OCTAVO_API void octavo_cache_free(octavo_cache* cache);
/* qkv [tokens, (heads + 2 kv_heads) * head_size]: rotates the q and k heads of each token in place, then stores its k and v
 * in its slot of one layer. cos_sin [table_rows, rotary]: cosines, then sines, for the first `rotary` elements of a head,
 * half and half (`interleaved`: the pairs are neighbours instead); NULL: nothing is rotated, and positions [tokens] are not
 * looked at. */
OCTAVO_API int octavo_cache_write(octavo_context* context, octavo_cache* cache, int64_t layer, float* qkv, int64_t heads,
                                  const int64_t* slots, int64_t tokens, const float* cos_sin, int64_t table_rows,
                                  int64_t rotary, const int32_t* positions, int32_t interleaved);
/* out [tokens, heads * head_size]. query_starts [sequences + 1], lengths [sequences] (keys, this step's included),
 * tables [sequences, table_width]; entries before the window of a sequence's first query are not looked at. A query sees the
 * last `window` keys up to its own. With soft_cap > 0 a score is soft_cap * tanh(score / soft_cap). sinks [heads] or NULL:
 * scores that take part in each head's softmax and have no value. With `causal` 0 a query sees the keys behind its own as
 * well. */
OCTAVO_API int octavo_attention(octavo_context* context, const octavo_cache* cache, int64_t layer, const float* qkv,
                                int64_t heads, int64_t tokens, const int32_t* query_starts, const int32_t* lengths,
                                int64_t sequences, const int32_t* tables, int64_t table_width, float scale, int64_t window,
                                float soft_cap, const float* sinks, int32_t causal, float* out);

/* -- from logits to tokens. Every row on its own, and its bits are the same in all instruction sets. ----------------- */
enum { OCTAVO_TOKEN_MASKED = -1, OCTAVO_TOKEN_NOT_FINITE = -2, OCTAVO_TOKEN_NO_SEED = -3 };

typedef struct { /* how a row's token is drawn; ids are below vocab_size, and pointers may be null where there are none */
  const float* logits;
  int64_t vocab_size;
  int64_t is_greedy, has_seed;
  int64_t seed, index, position; /* the key of the random number */
  double temperature, top_p, min_p;
  int64_t top_k; /* 0: off */
  double repetition_penalty, frequency_penalty, presence_penalty;
  const int64_t* counted_ids; /* the tokens that are penalized, and how often each was generated */
  const int64_t* counts;
  int64_t num_counted;
  const int64_t* stop_ids; /* not drawn while position < min_tokens */
  int64_t num_stops, min_tokens;
  const int64_t* banned_ids;
  int64_t num_banned;
  const int64_t* bias_ids;
  const float* bias_values;
  int64_t num_biases;
  const uint8_t* masks[2]; /* bit i % 8 of byte i / 8: token i may be drawn; none behind the end. Null: all may be */
  int64_t mask_bytes[2];
  int64_t may_end; /* where no other token is left, stop_ids are drawn before min_tokens too */
} octavo_sampling_row;

typedef struct { /* logprobs of one token and of the `top` most likely ones; ids and logprobs [1 + top] */
  const float* logits;
  int64_t vocab_size, token_id, top;
  int64_t* ids;
  double* logprobs;
  int64_t* rank;
} octavo_score;

/* logits [count, width] and positions [count] are put into `rows`. tokens [count]: an id, or OCTAVO_TOKEN_* where a row has
 * none. */
OCTAVO_API int octavo_sample(octavo_context* context, const float* logits, int64_t width, const int64_t* positions,
                             octavo_sampling_row* rows, int64_t count, int64_t* tokens);
OCTAVO_API int octavo_score_rows(octavo_context* context, const octavo_score* rows, int64_t count);

/* -- a recorded step: calls of the functions above, made again as one call ------------------------------------------ */
typedef struct octavo_program octavo_program;
typedef struct {
  int64_t value;    /* the argument itself (a pointer, a number, or a float's bits in the lower half) ... */
  int64_t variable; /* ... or, where this is not negative, what variables[variable] is multiplied by */
} octavo_argument;

OCTAVO_API octavo_program* octavo_program_new(void);
/* `function` by its name here, with all of its arguments in order. */
OCTAVO_API int octavo_program_add(octavo_program* program, const char* function, const octavo_argument* arguments,
                                  int64_t count);
/* Makes the calls in order, up to the first that fails, whose status it gives. */
OCTAVO_API int octavo_program_run(const octavo_program* program, const int64_t* variables, int64_t count);
OCTAVO_API void octavo_program_free(octavo_program* program);

#ifdef __cplusplus
}
#endif
#endif
