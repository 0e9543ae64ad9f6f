/* octaplex: the compressed key/value cache of transformer attention, and attention on the compressed bytes.
 *
 * Errors     The last argument of every call that can fail is the caller's own octaplex_error, or null. It receives a
 *            status, and a sentence that says what to do. Nothing in it needs freeing. Calls return the status, a handle or
 *            a size; null or 0 means failure. After an error outputs are unchanged, unless the call says otherwise.
 * Handles    octaplex_codec and octaplex_cache are opaque. Free each with its own call. There is no global state.
 * Threads    Any threads may use a codec at once. On a cache, calls that take it const may run at once; other calls need
 *            exclusive access. A cache of octaplex_cache_create_in needs exclusive access for every call.
 * Buffers    Each pointer has a length, in values. Null is allowed if the length is 0. Buffers of one call must not overlap.
 * Structs    Structs that begin with `size` may grow. Set `size` to sizeof, or call the struct's init function. Fields that
 *            this library does not know must be zeros.
 * Misuse     Builds with debug assertions always refuse a freed handle. Other builds refuse it while the freed memory is
 *            unchanged; after that, its use is undefined. Any other wrong argument is an error, never a crash.
 */

#ifndef OCTAPLEX_H
#define OCTAPLEX_H

/* Written by cbindgen from bindings/c/src; ci/c.sh --bless rewrites it. */

#include <stddef.h>
#include <stdint.h>

/* Selects all layers. */
#define OCTAPLEX_ALL_LAYERS SIZE_MAX



// Subtracts nothing from keys.
#define OCTAPLEX_CENTER_OFF 0

// Subtracts one centre for each head: the mean of its first keys.
#define OCTAPLEX_CENTER_PREFIX 1

// Subtracts each page's own mean. This is the default.
#define OCTAPLEX_CENTER_PAGE 2

// 32-bit floats.
#define OCTAPLEX_F32 0

// 16-bit floats of IEEE 754.
#define OCTAPLEX_F16 1

// bfloat16.
#define OCTAPLEX_BF16 2

// Bytes in a message, including its terminating zero.
#define OCTAPLEX_MESSAGE_BYTES 508

// The kind of an error; the message of `octaplex_error` has the details. Treat unknown kinds as errors: later versions
// may add some.
typedef enum {
    // Success.
    OCTAPLEX_STATUS_OK = 0,
    // A pointer is null but needs data, or is not aligned for its type.
    OCTAPLEX_STATUS_POINTER = 1,
    // A buffer has the wrong length, does not hold whole rows, or a size overflows or exceeds the machine's memory.
    OCTAPLEX_STATUS_LENGTH = 2,
    // A handle was freed, or is of another kind.
    OCTAPLEX_STATUS_HANDLE = 3,
    // This library does not know the `size` of a struct.
    OCTAPLEX_STATUS_STRUCT = 4,
    // A number is NaN, infinite or too large.
    OCTAPLEX_STATUS_VALUE = 5,
    // A spec, name or backend does not exist, a profile cannot be parsed, or a string is not UTF-8.
    OCTAPLEX_STATUS_TEXT = 6,
    // The library does not support a configuration, width or option.
    OCTAPLEX_STATUS_UNSUPPORTED = 7,
    // The tokens exceed the cache's capacity.
    OCTAPLEX_STATUS_FULL = 8,
    // The cache has no tokens.
    OCTAPLEX_STATUS_EMPTY = 9,
    // The sliding window has already dropped tokens that would be visible again.
    OCTAPLEX_STATUS_DROPPED = 10,
    // The number of a layer, head or token is out of range.
    OCTAPLEX_STATUS_MISSING = 11,
    // Blocks or a snapshot are damaged, truncated or of another kind.
    OCTAPLEX_STATUS_CORRUPT = 12,
    // A checksum differs from the published table: this build or machine computes other results.
    OCTAPLEX_STATUS_DIFFERS = 13,
    // The library has a bug: please report it. Free the handle that the call changed.
    OCTAPLEX_STATUS_INTERNAL = 14,
} octaplex_status;

// Compressed keys and values of one sequence, in all layers of a model. A batch needs one cache for each sequence.
//
// Calls that take it `const` may run at once on any threads. All other calls need exclusive access. A cache created by
// `octaplex_cache_create_in` needs exclusive access for every call, because its calls share scratch memory.
typedef struct octaplex_cache octaplex_cache;

// A codec for vectors of one width. It never changes, so any threads may use it at once. Freeing it needs exclusive
// access.
typedef struct octaplex_codec octaplex_codec;

// Receives the error of a call, as its last argument. It belongs to the caller, for example on the stack. It stays
// valid after handles are freed, and nothing in it needs freeing. Pass null to ignore it. Success sets `status` to 0
// and the message to an empty string.
typedef struct {
    // The kind of the error.
    octaplex_status status;
    // Says what was wrong and what to do, in UTF-8 with a terminating zero. Long messages are cut.
    char message[OCTAPLEX_MESSAGE_BYTES];
} octaplex_error;

// Configures the cache of a model whose layers are all alike. Call `octaplex_config_init` for the defaults, then set
// fields. Strings are read during the call only.
typedef struct {
    // Set it to `sizeof(octaplex_config)`. The struct may grow.
    size_t size;
    // Number of attention layers.
    size_t layers;
    // Key/value heads in each layer.
    size_t kv_heads;
    // Width of a key: 32, 64, 80, 96, 112, 128, 160, 192, 256, 512 or 576.
    size_t key_dim;
    // Width of a value: one of the same numbers.
    size_t value_dim;
    // The largest number of tokens that a layer holds.
    size_t capacity;
    // Spec of the keys' codec, such as `"trellis:m=4"`. Null: `"graded"`, or `"trellis"` at widths 32, 80, 96, 112 and
    // 576.
    const char *keys;
    // Spec of the values' codec. Null: `"trellis"`.
    const char *values;
    // Name of a backend. Null: the fastest of this CPU. All backends are bit-exact.
    const char *backend;
    // Number of the first layer. Each layer number has its own rotation.
    uint32_t first_layer;
    // Chooses what is subtracted from keys: `OCTAPLEX_CENTER_PAGE`, `…_PREFIX` or `…_OFF`.
    uint32_t center;
    // 1: keys are divided by a per-channel scale, so that the errors of all channels count alike. 0: off.
    uint32_t balance;
    // n: the first n and the last n layers stay in f16.
    uint32_t boundary_layers;
    // Tokens in a page: 64, 128 or 256.
    size_t page;
    // Number of first tokens that always stay exact.
    size_t sink_tokens;
    // At least this many of the newest tokens stay exact, in f16.
    size_t recent_window;
    // `octaplex_cache_truncate` restores the exact earlier state up to this many tokens back.
    size_t max_rollback;
    // Positions that a query sees, its own included. Pages that no later query sees are dropped. 0: all.
    size_t sliding_window;
    // Query heads of a layer, a multiple of `kv_heads`. 0: unknown; every `octaplex_cache_attend` must then set
    // `queries`.
    size_t query_heads;
    // Chooses the most accurate codecs whose pages take at most this many bits a value. Set it instead of `keys` and
    // `values`. 0: off.
    double bits;
    // Text of a profile from `octaplex calibrate`. It needs `bits`, and spends them where the model needs them. Null:
    // none.
    const char *profile;
} octaplex_config;

// Describes keys or values to append. Value c of token t of head h is at h·head_stride + t·token_stride + c.
typedef struct {
    // The first value, aligned for its type.
    const void *data;
    // Number of values from `data` on that may be read.
    size_t length;
    // `OCTAPLEX_F32`, `OCTAPLEX_F16` or `OCTAPLEX_BF16`.
    uint32_t dtype;
    // Values from a head's first row to the next head's first row. 0: tokens · width, as in `[heads][tokens][width]`.
    size_t head_stride;
    // Values from a token's row to the next token's row. 0: width.
    size_t token_stride;
} octaplex_tensor;

// Options of attention. A zero in any field except `size` is its default. A null pointer means all defaults.
typedef struct {
    // Set it to `sizeof(octaplex_attend)`. The struct may grow.
    size_t size;
    // Queries of each query head. 0: computed from the length, if the configuration sets `query_heads`.
    size_t queries;
    // Factor of the logits: logit = scale · q·k. 0: 1/√(key width).
    float scale;
    // Soft cap, applied before the bias: logit = cap · tanh(logit/cap). 0: none.
    float soft_cap;
    // Positions that a query sees, its own included. 0: the layer's sliding window, or all.
    size_t window;
    // 1: queries also see the sinks outside the window. 0: they do not.
    uint32_t keep_sinks;
    // 1: `position` is the position of the first query. 0: the last query has the position of the newest token.
    uint32_t has_position;
    // Position of the first query. Later queries have the next positions.
    size_t position;
    // A learned logit for each query head, which takes weight and adds nothing to the output. Null: none.
    const float *sink_logits;
    // Length of `sink_logits`: the number of query heads.
    size_t sink_logits_length;
    // Values to add to the logits, `[positions]` or `[query heads][positions]`. -∞ hides a token. Null: none.
    const float *bias;
    // Length of `bias`.
    size_t bias_length;
    // The key/value head whose query heads are first in the input. With `heads`, several threads can share the heads
    // of one token, each in its own call. `sink_logits` and `bias` still cover all query heads.
    size_t first_head;
    // Number of key/value heads whose queries are passed. 0: all from `first_head` on.
    size_t heads;
} octaplex_attend;

// Counts what a cache or a layer holds. For a whole cache, `tokens`, `paged_tokens`, `exact_tokens`, `next_position`,
// `evicted_tokens` and `decoded_tokens` are those of the layer with the most.
typedef struct {
    // Set it to `sizeof(octaplex_stats)` before the call. The struct may grow.
    size_t size;
    // Tokens that attention can see.
    size_t tokens;
    // Visible tokens in pages.
    size_t paged_tokens;
    // Tokens with an exact row: sinks, window, and tokens of closed pages that a rollback may open again.
    size_t exact_tokens;
    // Position of the next token.
    size_t next_position;
    // Tokens dropped by eviction or by a sliding window.
    size_t evicted_tokens;
    // Tokens that a truncation decoded back into the window.
    size_t decoded_tokens;
    // Bytes in use: exact rows, pages with centres and headers, balance.
    size_t bytes;
    // Bytes of pages that another fork also holds.
    size_t shared_bytes;
    // Number of values that these bytes encode.
    size_t values;
    // The largest number of tokens that a layer holds.
    size_t capacity;
    // Bytes of pages. They dominate in a long context.
    size_t paged_bytes;
    // Heads whose keys are balanced: their channels differ by more than chance. 0 until the balance is decided.
    size_t balanced_heads;
} octaplex_stats;

// Identifies the layer, the head and the role of a codec's vectors. Each id has its own rotation. Decode blocks with
// the id that encoded them.
typedef struct {
    // Number of the layer, from 0.
    uint32_t layer;
    // Number of the key/value head, from 0.
    uint32_t head;
    // 0: keys. 1: values.
    uint32_t role;
} octaplex_head_id;

// The sizes of a codec.
typedef struct {
    // Set it to `sizeof(octaplex_codec_sizes)` before the call. The struct may grow.
    size_t size;
    // Values in a vector.
    size_t dim;
    // Bytes in a block.
    size_t block_bytes;
    // Words in a prepared query.
    size_t query_words;
    // All stored bits divided by the number of values. Lists of exact values (`med`) are not counted.
    double bits_per_value;
} octaplex_codec_sizes;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the library's version, such as `"0.1.0"`. Do not free it.
const char *octaplex_version(void);

// Returns the name of the fastest backend of this CPU, which calls without a backend's name use. Do not free it. On a
// CPU with AMX, the first call asks Linux for permission to use its tiles.
const char *octaplex_hardware_acceleration(void);

// Returns the name of backend `number` of this CPU and build, fastest first. Returns null after the last one. Do not
// free names.
const char *octaplex_backend_name(size_t number);

// Computes the checksum of a codec and compares it with the published table. Every machine must compute the same
// results.
//
// `codec` is a name without parameters; null checks all codecs. `checksum`, if not null, receives the computed
// checksum, even if it differs (`OCTAPLEX_STATUS_DIFFERS`).
//
// Requires:
// Strings end in a zero.
octaplex_status octaplex_verify(const char *codec, const char *backend, uint32_t *checksum, octaplex_error *error);

// Creates an empty cache that grows on the heap. Returns null on failure. Free it with `octaplex_cache_free`.
//
// Requires:
// The configuration begins with its size, and its strings end in a zero.
octaplex_cache *octaplex_cache_create(const octaplex_config *config, octaplex_error *error);

// Returns the bytes that `octaplex_cache_create_in` needs, or 0 on failure. `queries` is the largest number of query
// rows in a call of `octaplex_cache_attend`: query heads times queries of each head.
//
// Requires:
// As for `octaplex_cache_create`.
size_t octaplex_cache_memory_needed(const octaplex_config *config, size_t queries, octaplex_error *error);

// Creates an empty cache of one layer in the caller's memory, of any alignment. Returns null on failure.
//
// The cache uses the memory until `octaplex_cache_free`, which does not release it. Later calls do not allocate. This
// call allocates only for dense rotations and sketches (`haar` and `gauss`). Rows to append must be packed. The cache
// cannot be forked.
//
// Requires:
// As for `octaplex_cache_create`. `memory` has `length` bytes that nothing else uses.
octaplex_cache *octaplex_cache_create_in(const octaplex_config *config,
                                         size_t queries,
                                         void *memory,
                                         size_t length,
                                         octaplex_error *error);

// Frees a cache. Null does nothing. The memory of `octaplex_cache_create_in` stays with its owner.
//
// Requires:
// No other call uses it, now or later.
octaplex_status octaplex_cache_free(octaplex_cache *cache, octaplex_error *error);

// Preallocates scratch memory for `queries` query rows, so that attention does not allocate. Query rows are query
// heads times queries of each head.
//
// Requires:
// The handle is null or of this library.
octaplex_status octaplex_cache_reserve(octaplex_cache *cache, size_t queries, octaplex_error *error);

// Appends `tokens` tokens to a layer: keys and values of all heads. Keys come after the rotary embedding. The bytes do
// not depend on how many tokens a call appends. After an error the cache is unchanged.
//
// Requires:
// The tensors' data are readable.
octaplex_status octaplex_cache_append(octaplex_cache *cache,
                                      size_t layer,
                                      size_t tokens,
                                      const octaplex_tensor *keys,
                                      const octaplex_tensor *values,
                                      octaplex_error *error);

// Decides a layer's balance from keys and queries of a prompt, which is better than from keys alone. Call it before
// the first page closes. Keys are `[kv heads][tokens][width]`, queries `[query heads][queries][width]`. The command
// `octaplex calibrate` is something else: it writes a profile.
//
// Requires:
// The buffers have their lengths.
octaplex_status octaplex_cache_calibrate(octaplex_cache *cache,
                                         size_t layer,
                                         const float *keys,
                                         size_t keys_length,
                                         const float *queries,
                                         size_t queries_length,
                                         octaplex_error *error);

// Computes attention on a layer. Queries are `[query heads][queries][key width]`, outputs
// `[query heads][queries][value width]`.
//
// `options` may be null if the configuration sets `query_heads`. Otherwise set `options.queries`: heads and queries
// cannot be told apart by length alone. The result is bit-exact on every machine. After an error the output is
// unspecified.
//
// Requires:
// The buffers have their lengths and do not overlap; the options begin with their size.
octaplex_status octaplex_cache_attend(const octaplex_cache *cache,
                                      size_t layer,
                                      const float *queries,
                                      size_t queries_length,
                                      const octaplex_attend *options,
                                      float *output,
                                      size_t output_length,
                                      octaplex_error *error);

// Computes scores q·k of a key/value head, without scale and mask, for engines with their own softmax.
//
// Queries are `[queries][width]`, scores `[queries][tokens]`. `tokens` in `octaplex_stats` is the layer's number of
// tokens.
//
// Requires:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_cache_score(const octaplex_cache *cache,
                                     size_t layer,
                                     size_t head,
                                     const float *queries,
                                     size_t queries_length,
                                     float *scores,
                                     size_t scores_length,
                                     octaplex_error *error);

// Computes Σ weight·v of a key/value head. Weights are `[rows][tokens]`, outputs `[rows][value width]`.
//
// Requires:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_cache_accumulate(const octaplex_cache *cache,
                                          size_t layer,
                                          size_t head,
                                          const float *weights,
                                          size_t weights_length,
                                          float *output,
                                          size_t output_length,
                                          octaplex_error *error);

// Removes the tokens from `position` on, in every layer, for example after rejected drafts. Up to `max_rollback`
// tokens back the cache is exactly what it was before. After an error the cache is unchanged.
//
// Requires:
// The handle is null or of this library.
octaplex_status octaplex_cache_truncate(octaplex_cache *cache, size_t position, octaplex_error *error);

// Drops the pages that lie entirely in positions `first..last` (`last` excluded), in every layer. Other tokens keep
// their positions. `dropped`, if not null, receives the number of dropped tokens, summed over layers.
//
// Requires:
// The handle is null or of this library.
octaplex_status octaplex_cache_evict(octaplex_cache *cache,
                                     size_t first,
                                     size_t last,
                                     size_t *dropped,
                                     octaplex_error *error);

// Removes all tokens.
//
// Requires:
// The handle is null or of this library.
octaplex_status octaplex_cache_clear(octaplex_cache *cache, octaplex_error *error);

// Creates a second cache with the same tokens. The two share closed pages, change independently, and are freed
// separately. Returns null on failure.
//
// Requires:
// The handle is null or of this library.
octaplex_cache *octaplex_cache_fork(const octaplex_cache *cache, octaplex_error *error);

// Fills in the statistics of a layer, or of all layers together (`OCTAPLEX_ALL_LAYERS`).
//
// Requires:
// `stats` begins with its size.
octaplex_status octaplex_cache_get_stats(const octaplex_cache *cache,
                                         size_t layer,
                                         octaplex_stats *stats,
                                         octaplex_error *error);

// Creates the codec of a spec, such as `"turboquant:bits=3"`, for vectors of `dim` values. Returns null on failure.
// Free it with `octaplex_codec_free`.
//
// `head` may be null: layer 0, head 0, keys. `backend` may be null: the fastest of this CPU.
//
// Requires:
// Strings end in a zero.
octaplex_codec *octaplex_codec_create(const char *spec,
                                      size_t dim,
                                      const octaplex_head_id *head,
                                      const char *backend,
                                      octaplex_error *error);

// Frees a codec. Null does nothing.
//
// Requires:
// No other call uses it, now or later.
octaplex_status octaplex_codec_free(octaplex_codec *codec, octaplex_error *error);

// Fills in the sizes of a codec.
//
// Requires:
// `sizes` begins with its size.
octaplex_status octaplex_codec_get_sizes(const octaplex_codec *codec,
                                         octaplex_codec_sizes *sizes,
                                         octaplex_error *error);

// Returns the largest size of a page of `rows` vectors in bytes, or 0 on failure. With most codecs every page has this
// size.
//
// Requires:
// The handle is null or of this library.
size_t octaplex_codec_page_bytes_max(const octaplex_codec *codec, size_t rows, octaplex_error *error);

// Encodes vectors of `rows_length` values together into the front of a page: all of them, or none after an error. The
// page needs at least `octaplex_codec_page_bytes_max` bytes. `used`, if not null, receives the bytes written.
//
// Requires:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_codec_encode(const octaplex_codec *codec,
                                      const float *rows,
                                      size_t rows_length,
                                      uint8_t *page,
                                      size_t page_length,
                                      size_t *used,
                                      octaplex_error *error);

// Decodes a page into `rows_length` values. `page_length` must be the page's exact length. Untrusted bytes are safe.
//
// Requires:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_codec_decode(const octaplex_codec *codec,
                                      const uint8_t *page,
                                      size_t page_length,
                                      float *rows,
                                      size_t rows_length,
                                      octaplex_error *error);

// Prepares one query of `dim` values for all pages. It writes `query_words` words, which only this codec can use.
//
// Requires:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_codec_prepare_query(const octaplex_codec *codec,
                                             const float *query,
                                             size_t query_length,
                                             float *words,
                                             size_t words_length,
                                             octaplex_error *error);

// Computes scores q·k of prepared queries with all rows of a page.
//
// `words` holds the queries one after the other, and scores are `[query][row]`. `page_length` must be the page's exact
// length. After an error the scores are unspecified.
//
// Requires:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_codec_score(const octaplex_codec *codec,
                                     const float *words,
                                     size_t words_length,
                                     const uint8_t *page,
                                     size_t page_length,
                                     float *scores,
                                     size_t scores_length,
                                     octaplex_error *error);

// Adds Σ weight·v over a page's rows to sums. Weights are `[output][row]`, sums `[output][dim]`.
//
// Set sums to zero before the first page. Call `octaplex_codec_finish` once after the last page: until then sums are
// in the codec's own basis.
//
// Requires:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_codec_accumulate(const octaplex_codec *codec,
                                          const float *weights,
                                          size_t weights_length,
                                          const uint8_t *page,
                                          size_t page_length,
                                          float *sums,
                                          size_t sums_length,
                                          octaplex_error *error);

// Transforms sums back to the basis of the vectors.
//
// Requires:
// The buffer has its length.
octaplex_status octaplex_codec_finish(const octaplex_codec *codec,
                                      float *sums,
                                      size_t sums_length,
                                      octaplex_error *error);

// Fills in the defaults. `size` is `sizeof(octaplex_config)`.
//
// Keys and values take 3.2 bits a value: `graded` keys and `trellis` values. Pages have 64 tokens. Four sinks and 64
// recent tokens stay exact, and rollbacks of 64 tokens are exact. Keys are centred page by page and balanced.
//
// Requires:
// `config` has `size` bytes.
octaplex_status octaplex_config_init(octaplex_config *config,
                                     size_t size,
                                     size_t layers,
                                     size_t kv_heads,
                                     size_t head_dim,
                                     size_t capacity,
                                     octaplex_error *error);

// Returns the length of a snapshot of the cache in its current state, or 0 on failure.
//
// Requires:
// The handle is null or of this library.
size_t octaplex_cache_serialized_length(const octaplex_cache *cache, octaplex_error *error);

// Writes a snapshot into a buffer of at least `octaplex_cache_serialized_length` bytes. `used`, if not null, receives
// its length.
//
// Requires:
// The buffer has its length.
octaplex_status octaplex_cache_save_buffer(const octaplex_cache *cache,
                                           uint8_t *buffer,
                                           size_t length,
                                           size_t *used,
                                           octaplex_error *error);

// Replaces the cache's contents with a snapshot of exactly `length` bytes, after checking and copying all of it. After
// an error the cache is unchanged.
//
// A cache on the heap takes the snapshot's configuration and keeps its own `query_heads`. The configuration of a cache
// of `octaplex_cache_create_in` must equal the snapshot's, except for `capacity`.
//
// Requires:
// The buffer has its length.
octaplex_status octaplex_cache_load_buffer(octaplex_cache *cache,
                                           const uint8_t *buffer,
                                           size_t length,
                                           octaplex_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OCTAPLEX_H */
