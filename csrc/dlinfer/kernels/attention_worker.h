// What one thread does with one piece of attention.
#pragma once
#include "attention_product.h"
#include "attention_softmax.h"
#include "scratch.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {

/// Up to as many rows (heads that share keys times queries) read keys where they lie; more turn them into columns first.
constexpr int64_t FEW = 8;

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// One piece: for some heads of keys, some of their rows over a range of keys. Many rows: one head.
struct Piece {
    const Sequence* sequence;
    bool few;
    int64_t first_head, heads;
    int64_t first_row, rows;  // row r of a head is query r / group, head r % group of those that share the keys
    int64_t first_key, last_key;
};

/// Results of ranges of keys that are still to be joined.
struct Kept {
    float* largest;
    float* total;
    float* values;
};

/// Memory of one thread, and what it does with it.
class Worker {
   public:
    Worker(const Attention& all, int64_t most_rows, bool turns)
        : all_(all),
          group_(all.heads / all.kv_heads),
          depth_(padded(all.keys.size)),
          width_(padded(all.values.size)),
          changes_(changes_scores(all)),
          rows_(most_rows),
          memory_(most_rows * (depth_ + width_) + FEW * TILE + (turns ? depth_ * TILE : 0) + copy_size(all.keys) + width_ * TILE + width_),
          queries_(memory_.data),
          results_(queries_ + most_rows * depth_),
          products_(results_ + most_rows * width_),
          columns_(products_ + FEW * TILE),
          key_copy_(columns_ + (turns ? depth_ * TILE : 0)),
          value_copy_(key_copy_ + copy_size(all.keys)),
          zeros_(value_copy_ + width_ * TILE) {}

    /// What a query does not see has no part in its result, whatever it is. Its weight is 0; where that is not enough, 0 times what is
    /// no number being none, the piece is done again with zeros instead.
    void run(const Piece& piece) {
        hides_ = false;
        all_tiles(piece);
        if (!is_strange(piece)) return;
        hides_ = true;
        std::memset(zeros_, 0, sizeof(float) * static_cast<size_t>(width_));
        all_tiles(piece);
    }

    /// Writes the rows of a piece that saw all its keys.
    void finish(const Piece& piece) {
        for (int64_t r = 0; r < piece.heads * piece.rows; r++) write(piece, r, total(rows_.data[r].total), results_ + r * width_);
    }

    /// Keeps the rows of one head of a piece that saw a range of the keys.
    void keep(const Piece& piece, int64_t head, const Kept& kept, int64_t index) {
        for (int64_t r = 0; r < piece.rows; r++) {
            kept.largest[index + r] = rows_.data[head * piece.rows + r].largest;
            kept.total[index + r] = total(rows_.data[head * piece.rows + r].total);
        }
        std::memcpy(kept.values + index * width_, results_ + head * piece.rows * width_, sizeof(float) * static_cast<size_t>(piece.rows * width_));
    }

    /// Joins what ranges of keys gave for one head, in their order, and writes it.
    void join(const Piece& piece, const Kept& kept, int64_t index, int64_t ranges) {
        for (int64_t r = 0; r < piece.rows; r++) {
            float largest = NOTHING, sum = 0;
            for (int64_t i = 0; i < ranges; i++) {
                const float one = kept.largest[index + i * piece.rows + r];
                largest = one > largest ? one : largest;
            }
            const float base = largest == NOTHING ? 0 : largest;
            std::memset(results_, 0, sizeof(float) * static_cast<size_t>(width_));
            for (int64_t i = 0; i < ranges; i++) {
                const int64_t from = index + i * piece.rows + r;
                const float factor = kept.largest[from] == largest ? 1 : std::exp(kept.largest[from] - base);
                sum += kept.total[from] * factor;
                for (int64_t k = 0; k < width_; k += LANES)
                    store_lanes(load_lanes(results_ + k) + load_lanes(kept.values + from * width_ + k) * factor, results_ + k);
            }
            write(piece, r, sum, results_);
        }
    }

   private:
    static int64_t copy_size(const Side& side) { return lies_ready(side) ? 0 : padded(side.size) * TILE; }

    /// Of row r of a piece: the query's number in the sequence, and its head.
    struct Name {
        int64_t query, head;
    };
    Name name_of(const Piece& piece, int64_t r) const {
        const int64_t row = piece.first_row + r % piece.rows;
        return {row / group_, (piece.first_head + r / piece.rows) * group_ + row % group_};
    }

    void all_tiles(const Piece& piece) {
        begin(piece);
        const Blocks blocks(all_, *piece.sequence);
        // Heads of a token lie side by side: a tile of one after the other is read as memory likes it.
        for (int64_t start = piece.first_key / TILE * TILE; start < piece.last_key; start += TILE)
            for (int64_t head = 0; head < piece.heads; head++) tile(piece, blocks, head, start, smaller(TILE, piece.last_key - start));
    }

    /// Whether a row whose weights are numbers has a result that is not finite.
    bool is_strange(const Piece& piece) const {
        for (int64_t r = 0; r < piece.heads * piece.rows; r++) {
            V zeros = {};
            for (int64_t k = 0; k < width_; k += LANES) zeros += load_lanes(results_ + r * width_ + k) * 0.0f;
            const float sum = total(rows_.data[r].total);
            if (total(zeros) != 0 && sum == sum) return true;
        }
        return false;
    }

    void begin(const Piece& piece) {
        const Sequence& sequence = *piece.sequence;
        for (int64_t r = 0; r < piece.heads * piece.rows; r++) {
            const Name name = name_of(piece, r);
            rows_.data[r] = row_of(all_, sequence, name.query, name.head);
            const int64_t from = sequence.query_offset + name.query * all_.query_token + name.head * all_.query_head;
            float* to = piece.few ? queries_ + r * depth_ : columns_;
            if (all_.dtype == Dtype::f32) widen_row(static_cast<const float*>(all_.query) + from, all_.keys.size, to);
            if (all_.dtype == Dtype::bf16) widen_row(static_cast<const Bfloat16*>(all_.query) + from, all_.keys.size, to);
            if (all_.dtype == Dtype::f16) widen_row(static_cast<const Half*>(all_.query) + from, all_.keys.size, to);
            if (!piece.few) turn_query(piece, r, to);
        }
        std::memset(results_, 0, sizeof(float) * static_cast<size_t>(piece.heads * piece.rows * width_));
    }

    /// Queries of ROWS rows (the last block has fewer) lie in columns, as `multiply` takes them.
    void turn_query(const Piece& piece, int64_t r, const float* query) {
        const int64_t block = r / ROWS * ROWS, rows = smaller(ROWS, piece.rows - block);
        float* to = queries_ + block * depth_ + r % ROWS;
        for (int64_t k = 0; k < depth_; k++) to[k * rows] = query[k];
    }

    /// Up to which key of the tile any of these rows sees; 0: none sees any.
    int64_t sees(int64_t first, int64_t rows, int64_t start, int64_t count) const {
        int64_t last = 0;
        for (int64_t r = first; r < first + rows; r++) {
            const Row& row = rows_.data[r];
            if (row.first < start + count && row.last - start > last && row.last > row.first) last = row.last - start;
        }
        return smaller(last, count);
    }

    void tile(const Piece& piece, const Blocks& blocks, int64_t head, int64_t start, int64_t count) {
        const int64_t first = head * piece.rows, cache_head = piece.first_head + head;
        if (!sees(first, piece.rows, start, count)) return;
        const char* keys = all_.keys.data + piece.sequence->key_offset + cache_head * all_.keys.head_stride;
        const char* values = all_.values.data + piece.sequence->value_offset + cache_head * all_.values.head_stride;
        find_rows(all_.keys, blocks, keys, cache_head, start, count, lies_ready(all_.keys), key_copy_, keys_);
        // Values that many rows read are worth a copy side by side.
        find_rows(all_.values, blocks, values, cache_head, start, count, piece.few && lies_ready(all_.values), value_copy_, values_);
        if (piece.few)
            few_rows(first, piece.rows, start, count);
        else
            many_rows(piece.rows, start, count);
    }

    void few_rows(int64_t first, int64_t rows, int64_t start, int64_t count) {
        const float* queries = queries_ + first * depth_;
        float* results = results_ + first * width_;
        for (int64_t r = 0; r < rows; r += ROWS)
            multiply_rows(smaller(ROWS, rows - r), queries + r * depth_, depth_, keys_, count, products_ + r * TILE);
        float factors[FEW];
        for (int64_t r = 0; r < rows; r++) factors[r] = take_tile(all_, rows_.data[first + r], start, count, changes_, products_ + r * TILE);
        for (int64_t r = 0; r < rows; r += ROWS)
            add_values(first + r, smaller(ROWS, rows - r), start, count, products_ + r * TILE, factors + r, results + r * width_);
    }

    void many_rows(int64_t rows, int64_t start, int64_t count) {
        turn_rows(keys_, count, depth_, columns_);
        for (int64_t r = 0; r < rows; r += ROWS) {
            const int64_t some = smaller(ROWS, rows - r), seen = sees(r, some, start, count);
            if (!seen) continue;
            multiply(some, queries_ + r * depth_, depth_, columns_, products_);
            float factors[ROWS];
            for (int64_t i = 0; i < some; i++) factors[i] = take_tile(all_, rows_.data[r + i], start, count, changes_, products_ + i * TILE);
            add_values(r, some, start, seen, products_, factors, results_ + r * width_);
        }
    }

    /// Adds weights [rows, TILE] times the values of a tile, of which `count` count, to the results of rows from `first` on.
    void add_values(int64_t first, int64_t rows, int64_t start, int64_t count, const float* weights, const float* factors, float* results) {
        if (!hides_) return grow(rows, weights, values_, count, factors, results, width_);
        for (int64_t r = 0; r < rows; r++) {
            RowPointers seen = values_;
            for (int64_t k = 0; k < count; k++)
                if (!sees_key(all_, rows_.data[first + r], start + k)) seen.at[k] = zeros_;
            grow(1, weights + r * TILE, seen, count, factors + r, results + r * width_, width_);
        }
    }

    void write(const Piece& piece, int64_t r, float sum, const float* result) {
        const Name name = name_of(piece, r);
        const int64_t to = piece.sequence->output_offset + name.query * all_.output_token + name.head * all_.output_head;
        if (all_.dtype == Dtype::f32) write_row(result, sum, static_cast<float*>(all_.output) + to);
        if (all_.dtype == Dtype::bf16) write_row(result, sum, static_cast<Bfloat16*>(all_.output) + to);
        if (all_.dtype == Dtype::f16) write_row(result, sum, static_cast<Half*>(all_.output) + to);
    }

    template <typename Element>
    void write_row(const float* result, float sum, Element* to) {
        if (sum == 0)  // saw nothing
            std::memset(static_cast<void*>(to), 0, sizeof(Element) * static_cast<size_t>(all_.values.size));
        else
            narrow_row(result, all_.values.size, 1 / sum, to);
    }

    const Attention& all_;
    const int64_t group_, depth_, width_;
    const bool changes_;
    Scratch<Row> rows_;
    Scratch<float> memory_;
    float *const queries_, *const results_, *const products_, *const columns_, *const key_copy_, *const value_copy_, *const zeros_;
    RowPointers keys_, values_;
    bool hides_ = false;  // what rows do not see: values are zeros there
};

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
