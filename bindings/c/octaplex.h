/* octaplex: the compressed key/value cache of transformer attention, and attention on the compressed bytes.
 *
 * Errors     The last argument of every call that can fail is the caller's own octaplex_error, or null: a status, and a
 *            sentence that says what to do. Nothing in it is freed. Calls return the status, a handle or a size (null or 0
 *            where they fail); outputs are as they were, unless a call says otherwise.
 * Handles    octaplex_codec and octaplex_cache are opaque; each is freed by its own call. There is no global state.
 * Threads    A codec never changes: any number of threads may use one. On a cache, calls that take it const may run at
 *            once; others need it for themselves. A cache in memory that the caller brought needs every call for itself.
 * Buffers    A pointer comes with its length, in values. Null is allowed where the length is 0. Buffers of one call do not
 *            overlap.
 * Structs    Those that begin with `size` may grow: set it to sizeof, or call the struct's init. What this library does not
 *            know must be zeros.
 * Misuse     A freed handle is refused for certain in builds with debug assertions; other builds refuse it where its memory
 *            still says so, and the rest is the caller's. Any other wrong argument is an error, never a trap.
 */

#ifndef OCTAPLEX_H
#define OCTAPLEX_H

/* Written by cbindgen from bindings/c/src; ci/c.sh --bless rewrites it. */

#include <stddef.h>
#include <stdint.h>

/* Stands for all layers. */
#define OCTAPLEX_ALL_LAYERS SIZE_MAX



// Nothing is subtracted from keys.
#define OCTAPLEX_CENTER_OFF 0

// One centre a head, the mean of the first keys.
#define OCTAPLEX_CENTER_PREFIX 1

// Each page's own mean: the default.
#define OCTAPLEX_CENTER_PAGE 2

// 32-bit floats.
#define OCTAPLEX_F32 0

// IEEE's 16-bit floats.
#define OCTAPLEX_F16 1

// bfloat16.
#define OCTAPLEX_BF16 2

// Bytes of a message, the closing zero included.
#define OCTAPLEX_MESSAGE_BYTES 508

// What went wrong, in kind; an `octaplex_error` says it in words. New kinds may come: treat those unknown as errors.
typedef enum {
    // Nothing did.
    OCTAPLEX_STATUS_OK = 0,
    // A null pointer where there must be data, or one that is not aligned for its type.
    OCTAPLEX_STATUS_POINTER = 1,
    // A buffer of the wrong length, rows that do not come out even, or a size that overflows or that the machine has no
    // memory for.
    OCTAPLEX_STATUS_LENGTH = 2,
    // A handle that was freed, or is none of this kind.
    OCTAPLEX_STATUS_HANDLE = 3,
    // A struct whose `size` is not one that this library knows.
    OCTAPLEX_STATUS_STRUCT = 4,
    // A NaN or an infinity, or a number that is too large.
    OCTAPLEX_STATUS_VALUE = 5,
    // A spec, name or backend that does not exist; a text that is not UTF-8.
    OCTAPLEX_STATUS_TEXT = 6,
    // A configuration, width or option that the library does not offer.
    OCTAPLEX_STATUS_UNSUPPORTED = 7,
    // The cache has no room for the tokens.
    OCTAPLEX_STATUS_FULL = 8,
    // The cache has no tokens to attend to.
    OCTAPLEX_STATUS_EMPTY = 9,
    // Tokens that would be seen were dropped behind a sliding window.
    OCTAPLEX_STATUS_DROPPED = 10,
    // A layer, head or token that is not there.
    OCTAPLEX_STATUS_MISSING = 11,
    // Blocks or a snapshot that are damaged, truncated or of another kind.
    OCTAPLEX_STATUS_CORRUPT = 12,
    // A checksum is another than the table's: this build or machine computes something else.
    OCTAPLEX_STATUS_DIFFERS = 13,
    // A fault in the library: please report it. The handle that the call changed should be freed.
    OCTAPLEX_STATUS_INTERNAL = 14,
} octaplex_status;

// The keys and values of a model's layers, compressed, and attention on them. Calls that take it `const` may run at once,
// on as many threads as there are; all others need it for themselves. (In memory that the caller brought, every call
// does: they share what they work in.)
typedef struct octaplex_cache octaplex_cache;

// A codec of one width. It never changes: any number of threads may use one at once, but for its freeing.
typedef struct octaplex_codec octaplex_codec;

// The last argument of every call that can fail: the caller's own, on its stack; nothing in it is ever freed, and it
// holds whatever happens to handles. Calls may be given null instead. A call that went well sets `status` to 0 and the
// message to an empty one.
typedef struct {
    // What went wrong, in kind.
    octaplex_status status;
    // What was wrong and what to do, in UTF-8, with a closing zero; cut where it is too long.
    char message[OCTAPLEX_MESSAGE_BYTES];
} octaplex_error;

// The cache of a model, every layer alike. `octaplex_config_init` fills in the defaults; what is to be otherwise is then
// assigned. Texts are read while a call lasts.
typedef struct {
    // `sizeof(octaplex_config)`: the struct may grow.
    size_t size;
    // Attention layers.
    size_t layers;
    // Key/value heads of a layer.
    size_t kv_heads;
    // Width of a key: 32, 64, 80, 96, 112, 128, 160, 192, 256, 512 or 576.
    size_t key_dim;
    // Width of a value, likewise.
    size_t value_dim;
    // Tokens that a layer holds at most.
    size_t capacity;
    // Spec of the keys' codec, `"trellis:m=4"`; null: `"graded"`, or `"trellis"` at the widths 32, 80, 96, 112 and 576.
    const char *keys;
    // Spec of the values' codec; null: `"trellis"`.
    const char *values;
    // Name of a backend; null: the fastest of this CPU. All give the same bits.
    const char *backend;
    // Number of the first layer, from 0: layers are rotated differently.
    uint32_t first_layer;
    // What is subtracted from keys: `OCTAPLEX_CENTER_PAGE`, `…_PREFIX` or `…_OFF`.
    uint32_t center;
    // Whether keys are divided by a diagonal that makes the channels' errors count alike: 1 or 0.
    uint32_t balance;
    // The first and the last so many layers are kept in f16.
    uint32_t boundary_layers;
    // Tokens of a page: 64, 128 or 256.
    size_t page;
    // The first tokens, kept exact for ever.
    size_t sink_tokens;
    // At least so many of the newest tokens are kept exact, in f16.
    size_t recent_window;
    // So many tokens can be taken back without a trace.
    size_t max_rollback;
    // Queries see so many tokens, their own included, and pages that none will see again are dropped; 0: all.
    size_t sliding_window;
    // Query heads of a layer, a multiple of `kv_heads`; 0: not known, and then every call of `octaplex_cache_attend` says
    // `queries`.
    size_t query_heads;
    // Instead of `keys` and `values`: the most accurate codecs whose pages take at most so many bits a value; 0: not asked for.
    double bits;
    // The text of a profile, from `octaplex calibrate`: it spends `bits` where the model needs them. Null: none.
    const char *profile;
} octaplex_config;

// Keys or values to append: value c of head h's token t is at h·head_stride + t·token_stride + c.
typedef struct {
    // The first value, aligned for its type.
    const void *data;
    // Values from there on that may be read.
    size_t length;
    // `OCTAPLEX_F32`, `OCTAPLEX_F16` or `OCTAPLEX_BF16`.
    uint32_t dtype;
    // Values from a head's first row to the next head's; 0: tokens · width, as in `[heads][tokens][width]`.
    size_t head_stride;
    // Values from a row to the next token's; 0: width.
    size_t token_stride;
} octaplex_tensor;

// How to attend. Zeros everywhere but in `size` are the defaults, and null stands for all of them.
typedef struct {
    // `sizeof(octaplex_attend)`: the struct may grow.
    size_t size;
    // Queries of the block, for each query head; 0: as many as there are, which takes a configuration
    // with `query_heads`.
    size_t queries;
    // logit = scale · q·k; 0: 1/√(key width).
    float scale;
    // logit = cap · tanh(logit/cap), before the bias; 0: none.
    float soft_cap;
    // A query sees so many positions, its own included; 0: the layer's sliding window, or all.
    size_t window;
    // Whether the sinks are seen from beyond the window as well: 1 or 0.
    uint32_t keep_sinks;
    // Whether `position` says where the block begins: 1, or 0 for a block at the end, whose last query has the position of
    // the newest token.
    uint32_t has_position;
    // Position of the first query of the block.
    size_t position;
    // A learned logit of each query head that takes weight and gives nothing; or null.
    const float *sink_logits;
    // Their number: the query heads.
    size_t sink_logits_length;
    // Added to the logits, `[positions]` or `[query heads][positions]`; -∞ hides a token; or null.
    const float *bias;
    // Its length.
    size_t bias_length;
    // The key/value head whose query heads come first: with `heads`, threads share the heads of one token, each in a call
    // of its own. `sink_logits` and `bias` are those of all query heads all the same.
    size_t first_head;
    // Key/value heads whose queries are given; 0: all from the first on.
    size_t heads;
} octaplex_attend;

// What a cache or a layer holds.
typedef struct {
    // `sizeof(octaplex_stats)`, given: the struct may grow.
    size_t size;
    // Tokens that attention can see; of a whole cache, those of the layer that has most. So are the other counts of tokens.
    size_t tokens;
    // Of these, in pages.
    size_t paged_tokens;
    // Tokens with an exact row.
    size_t exact_tokens;
    // The position of the next token; of a whole cache, the furthest layer's.
    size_t next_position;
    // Tokens dropped by eviction, or behind a sliding window.
    size_t evicted_tokens;
    // Tokens that a truncation decoded back into the window.
    size_t decoded_tokens;
    // Bytes in use: exact rows, pages with centres and headers, balance.
    size_t bytes;
    // Of these, those in pages that another fork holds as well.
    size_t shared_bytes;
    // Values that these bytes stand for.
    size_t values;
    // Tokens that there is room for in each layer.
    size_t capacity;
    // Of the bytes, those in pages: what a long context tends to.
    size_t paged_bytes;
    // Heads whose keys are balanced: those whose channels differ by more than chance, once that is decided.
    size_t balanced_heads;
} octaplex_stats;

// Which head of which layer a codec serves: vectors of different ones are rotated differently. Blocks decode with the
// id that they were encoded with.
typedef struct {
    // Layer, from 0.
    uint32_t layer;
    // Key/value head, from 0.
    uint32_t head;
    // 0 for keys, 1 for values.
    uint32_t role;
} octaplex_head_id;

// The sizes of a codec.
typedef struct {
    // `sizeof(octaplex_codec_sizes)`, given: the struct may grow.
    size_t size;
    // Values of a vector.
    size_t dim;
    // Bytes of a block.
    size_t block_bytes;
    // Words of a prepared query.
    size_t query_words;
    // Everything stored counted, but for lists of exact values (`med`).
    double bits_per_value;
} octaplex_codec_sizes;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The library's version, `"0.1.0"`: a text that is never freed.
const char *octaplex_version(void);

// The instructions that calls without a backend's name run on, the fastest of this CPU: a text that is never freed. Where a CPU has
// AMX, Linux is asked once a process to permit its tiles.
const char *octaplex_hardware_acceleration(void);

// The backends of this CPU and build by number, the fastest first; null behind the last one. Texts are never freed.
const char *octaplex_backend_name(size_t number);

// Computes the checksums of a codec (its name, without keys), or of all where `codec` is null, and compares them with the
// table that every machine must give. `checksum` (or null) becomes what was found, even where it is another
// (`OCTAPLEX_STATUS_DIFFERS`).
//
// The caller's part:
// Texts end in a zero.
octaplex_status octaplex_verify(const char *codec,
                                const char *backend,
                                uint32_t *checksum,
                                octaplex_error *error);

// An empty cache that grows on the heap; null where it fails. Freed by `octaplex_cache_free`.
//
// The caller's part:
// The configuration begins with its size, and its texts end in a zero.
octaplex_cache *octaplex_cache_create(const octaplex_config *config, octaplex_error *error);

// Bytes that `octaplex_cache_create_in` needs for one layer whose calls attend with at most `queries` rows (query heads
// times queries of a block); 0 where it fails.
//
// The caller's part:
// As for `octaplex_cache_create`.
size_t octaplex_cache_memory_needed(const octaplex_config *config, size_t queries, octaplex_error *error);

// An empty cache of one layer in memory that the caller brings, of any alignment; null where it fails. The memory is the
// cache's until `octaplex_cache_free`, which leaves it to its owner. No call allocates (but dense rotations and sketches,
// `haar` and `gauss`, when it is made); rows to append must be packed, and it cannot be forked.
//
// The caller's part:
// As for `octaplex_cache_create`; `memory` has `length` bytes that nothing else uses.
octaplex_cache *octaplex_cache_create_in(const octaplex_config *config,
                                         size_t queries,
                                         void *memory,
                                         size_t length,
                                         octaplex_error *error);

// Frees a cache; null is nothing to free. Memory that the caller brought stays the caller's.
//
// The caller's part:
// No other call uses it, now or later.
octaplex_status octaplex_cache_free(octaplex_cache *cache, octaplex_error *error);

// Allocates what calls with so many query rows (query heads times queries of a block) work in: then attention allocates
// nothing.
//
// The caller's part:
// The handle came from this library.
octaplex_status octaplex_cache_reserve(octaplex_cache *cache, size_t queries, octaplex_error *error);

// Adds so many tokens to a layer: keys and values of all its heads. One at a time or a whole prompt give the same bytes.
// Where it fails, the cache is as it was.
//
// The caller's part:
// The tensors' data are there.
octaplex_status octaplex_cache_append(octaplex_cache *cache,
                                      size_t layer,
                                      size_t tokens,
                                      const octaplex_tensor *keys,
                                      const octaplex_tensor *values,
                                      octaplex_error *error);

// Decides a layer's balance from a prompt's keys, `[kv heads][tokens][width]`, and the queries that will meet such keys,
// `[query heads][queries][width]`, before the first page closes. Without it keys alone decide.
//
// The caller's part:
// The buffers have their lengths.
octaplex_status octaplex_cache_calibrate(octaplex_cache *cache,
                                         size_t layer,
                                         const float *keys,
                                         size_t keys_length,
                                         const float *queries,
                                         size_t queries_length,
                                         octaplex_error *error);

// Attention on a layer: queries `[query heads][queries][key width]`, outputs `[query heads][queries][value width]`.
// `options` may be null where the configuration has `query_heads`: otherwise its `queries` says how many queries a head has, as
// a block would be taken for more heads. The same bits on every machine. Where it fails, the output may hold anything.
//
// The caller's part:
// The buffers have their lengths and do not overlap; the options begin with their size.
octaplex_status octaplex_cache_attend(const octaplex_cache *cache,
                                      size_t layer,
                                      const float *queries,
                                      size_t queries_length,
                                      const octaplex_attend *options,
                                      float *output,
                                      size_t output_length,
                                      octaplex_error *error);

// The scores q·k of a key/value head, unscaled, nothing masked, for engines with a softmax of their own: queries
// `[queries][width]`, scores `[queries][tokens]`, the tokens that `octaplex_cache_get_stats` counts for the layer.
//
// The caller's part:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_cache_score(const octaplex_cache *cache,
                                     size_t layer,
                                     size_t head,
                                     const float *queries,
                                     size_t queries_length,
                                     float *scores,
                                     size_t scores_length,
                                     octaplex_error *error);

// Σ weight·v of a key/value head: weights `[rows][tokens]`, outputs `[rows][value width]`.
//
// The caller's part:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_cache_accumulate(const octaplex_cache *cache,
                                          size_t layer,
                                          size_t head,
                                          const float *weights,
                                          size_t weights_length,
                                          float *output,
                                          size_t output_length,
                                          octaplex_error *error);

// Forgets the tokens from a position on, in every layer, as after rejected drafts: without a trace up to `max_rollback`
// tokens back. Where it fails, the cache is as it was.
//
// The caller's part:
// The handle came from this library.
octaplex_status octaplex_cache_truncate(octaplex_cache *cache, size_t position, octaplex_error *error);

// Drops the whole pages whose tokens lie from position `first` to before `last`, in every layer; the others keep their
// positions. `dropped` (or null) becomes the tokens dropped, all layers added up.
//
// The caller's part:
// The handle came from this library.
octaplex_status octaplex_cache_evict(octaplex_cache *cache,
                                     size_t first,
                                     size_t last,
                                     size_t *dropped,
                                     octaplex_error *error);

// Forgets everything.
//
// The caller's part:
// The handle came from this library.
octaplex_status octaplex_cache_clear(octaplex_cache *cache, octaplex_error *error);

// A second cache with the same tokens, which goes its own way and is freed by itself: closed pages are shared. Null where
// it fails.
//
// The caller's part:
// The handle came from this library.
octaplex_cache *octaplex_cache_fork(const octaplex_cache *cache,
                                    octaplex_error *error);

// Fills in what a layer holds, or all of them together (`OCTAPLEX_ALL_LAYERS`).
//
// The caller's part:
// `stats` begins with its size.
octaplex_status octaplex_cache_get_stats(const octaplex_cache *cache,
                                         size_t layer,
                                         octaplex_stats *stats,
                                         octaplex_error *error);

// The codec of a spec, `"turboquant:bits=3"`, for vectors of `dim` values. `head` may be null (layer 0, head 0, keys),
// and so may the backend's name (the fastest). Null where it fails; freed by `octaplex_codec_free`.
//
// The caller's part:
// Texts end in a zero.
octaplex_codec *octaplex_codec_create(const char *spec,
                                      size_t dim,
                                      const octaplex_head_id *head,
                                      const char *backend,
                                      octaplex_error *error);

// Frees a codec; null is nothing to free.
//
// The caller's part:
// No other call uses it, now or later.
octaplex_status octaplex_codec_free(octaplex_codec *codec, octaplex_error *error);

// Fills in the sizes of a codec.
//
// The caller's part:
// `sizes` begins with its size.
octaplex_status octaplex_codec_get_sizes(const octaplex_codec *codec,
                                         octaplex_codec_sizes *sizes,
                                         octaplex_error *error);

// The most bytes that a page of `rows` vectors takes, for most codecs the bytes that it always takes; 0 where it fails.
//
// The caller's part:
// The handle came from this library.
size_t octaplex_codec_page_bytes_max(const octaplex_codec *codec, size_t rows, octaplex_error *error);

// Encodes vectors, `rows_length` values, into the front of a page, all or none. The page has room for
// `octaplex_codec_page_bytes_max` of them or more; `used` (or null) becomes the bytes that they took.
//
// The caller's part:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_codec_encode(const octaplex_codec *codec,
                                      const float *rows,
                                      size_t rows_length,
                                      uint8_t *page,
                                      size_t page_length,
                                      size_t *used,
                                      octaplex_error *error);

// Decodes a page, its bytes and no more, into `rows_length` values. Any bytes are allowed.
//
// The caller's part:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_codec_decode(const octaplex_codec *codec,
                                      const uint8_t *page,
                                      size_t page_length,
                                      float *rows,
                                      size_t rows_length,
                                      octaplex_error *error);

// Prepares one query, `dim` values, for all pages: `query_words` words, which belong to this codec.
//
// The caller's part:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_codec_prepare_query(const octaplex_codec *codec,
                                             const float *query,
                                             size_t query_length,
                                             float *words,
                                             size_t words_length,
                                             octaplex_error *error);

// Scores q·k of every prepared query, one behind the other in `words`, with every row of a page, its bytes and no more:
// `[query][row]`. Where it fails, scores may hold anything.
//
// The caller's part:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_codec_score(const octaplex_codec *codec,
                                     const float *words,
                                     size_t words_length,
                                     const uint8_t *page,
                                     size_t page_length,
                                     float *scores,
                                     size_t scores_length,
                                     octaplex_error *error);

// Adds Σ weight·v over a page's rows to sums, `[output][dim]` in the codec's own basis; weights are `[output][row]`. Sums
// begin as zeros, and `octaplex_codec_finish` comes once behind the last page.
//
// The caller's part:
// The buffers have their lengths, and do not overlap.
octaplex_status octaplex_codec_accumulate(const octaplex_codec *codec,
                                          const float *weights,
                                          size_t weights_length,
                                          const uint8_t *page,
                                          size_t page_length,
                                          float *sums,
                                          size_t sums_length,
                                          octaplex_error *error);

// Brings sums back to the vectors' basis.
//
// The caller's part:
// The buffer has its length.
octaplex_status octaplex_codec_finish(const octaplex_codec *codec,
                                      float *sums,
                                      size_t sums_length,
                                      octaplex_error *error);

// Fills in the defaults: `graded` keys and `trellis` values (3.2 bits a value), pages of 64, four sinks, 64 recent tokens,
// rollbacks of 64, keys centred page by page and balanced. `size` is `sizeof(octaplex_config)`.
//
// The caller's part:
// `config` has `size` bytes.
octaplex_status octaplex_config_init(octaplex_config *config,
                                     size_t size,
                                     size_t layers,
                                     size_t kv_heads,
                                     size_t head_dim,
                                     size_t capacity,
                                     octaplex_error *error);

// Bytes of a snapshot of the cache as it is; 0 where it fails.
//
// The caller's part:
// The handle came from this library.
size_t octaplex_cache_serialized_length(const octaplex_cache *cache, octaplex_error *error);

// Writes a snapshot into a buffer of `octaplex_cache_serialized_length` bytes or more; `used` (or null) becomes its length.
//
// The caller's part:
// The buffer has its length.
octaplex_status octaplex_cache_save_buffer(const octaplex_cache *cache,
                                           uint8_t *buffer,
                                           size_t length,
                                           size_t *used,
                                           octaplex_error *error);

// Makes the cache what a snapshot says, its bytes and no more, and checks all of it. On the heap the configuration is the
// snapshot's, except for `query_heads`, which stays; in memory that was brought it must be the cache's own but for its capacity. Where
// it fails, the cache is as it was.
//
// There is no view of a buffer without a copy. Pages lie in it as they do in a cache, but a cache owns its pages: it drops
// them behind a window, and forks count who shares them. Its exact tokens are a ring, which a snapshot has in order. A view
// would save no pass over the bytes either: every page is checked before anything attends to it.
//
// The caller's part:
// The buffer has its length.
octaplex_status octaplex_cache_load_buffer(octaplex_cache *cache,
                                           const uint8_t *buffer,
                                           size_t length,
                                           octaplex_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OCTAPLEX_H */
