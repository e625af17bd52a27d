#include "attention.h"

#include "attention_product.h"
#include "attention_softmax.h"
#include "parallel.h"
#include "scratch.h"

namespace dlinfer::DLINFER_LEVEL {
namespace {

/// Up to as many rows (heads that share keys times queries) read keys where they lie; more turn them into columns first.
constexpr int64_t FEW = 8;
/// Rows of a piece of work that turns keys, for which turning them is little; with many threads down to the second number.
constexpr int64_t MANY = 40 * ROWS, LEAST = 8 * ROWS;
/// Keys of a piece of work with few rows. Not chosen by the number of threads: sums would differ.
constexpr int64_t RANGE = 16 * TILE;
/// Products that take longer than it takes to start a thread.
constexpr int64_t ENOUGH = 200'000;

int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// How one sequence is cut into pieces of work.
struct Plan {
    bool few;
    int64_t pieces;        // for one head of keys
    int64_t first;         // number of its first piece
    int64_t first_result;  // row of kept results, where the pieces are ranges of keys
};

/// One piece: some rows of one head of keys, over a range of keys.
struct Piece {
    const Sequence* sequence;
    int64_t head;
    int64_t first_row, rows;  // row r is query r / group, head r % group of those that share the keys
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
    explicit Worker(const Attention& all, int64_t most_rows)
        : all_(all),
          group_(all.heads / all.kv_heads),
          depth_(padded(all.keys.size)),
          width_(padded(all.values.size)),
          changes_(changes_scores(all)),
          rows_(most_rows),
          memory_(most_rows * (depth_ + width_) + FEW * TILE + columns_size(most_rows) + copy_size(all.keys) + width_ * TILE),
          queries_(memory_.data),
          results_(queries_ + most_rows * depth_),
          products_(results_ + most_rows * width_),
          columns_(products_ + FEW * TILE),
          key_copy_(columns_ + columns_size(most_rows)),
          value_copy_(key_copy_ + copy_size(all.keys)) {}

    void run(const Piece& piece, bool few) {
        begin(piece, few);
        const Blocks blocks(all_, *piece.sequence);
        const char* keys = all_.keys.data + piece.sequence->key_offset + piece.head * all_.keys.head_stride;
        const char* values = all_.values.data + piece.sequence->value_offset + piece.head * all_.values.head_stride;
        // Values that many rows read are worth a copy side by side.
        const bool keys_ready = lies_ready(all_.keys), values_ready = lies_ready(all_.values) && few;
        for (int64_t start = piece.first_key / TILE * TILE; start < piece.last_key; start += TILE) {
            const int64_t count = smaller(TILE, piece.last_key - start);
            if (!sees(0, piece.rows, start, count)) continue;
            find_rows(all_.keys, blocks, keys, piece.head, start, count, keys_ready, key_copy_, keys_);
            find_rows(all_.values, blocks, values, piece.head, start, count, values_ready, value_copy_, values_);
            if (few)
                few_rows(piece.rows, start, count);
            else
                many_rows(piece.rows, start, count);
        }
    }

    /// Writes the rows of a piece that saw all its keys.
    void finish(const Piece& piece) {
        for (int64_t r = 0; r < piece.rows; r++) write(piece, r, total(rows_.data[r].total), results_ + r * width_);
    }

    /// Keeps the rows of a piece that saw a range of the keys.
    void keep(const Piece& piece, const Kept& kept, int64_t place) {
        for (int64_t r = 0; r < piece.rows; r++) {
            kept.largest[place + r] = rows_.data[r].largest;
            kept.total[place + r] = total(rows_.data[r].total);
        }
        std::memcpy(kept.values + place * width_, results_, sizeof(float) * static_cast<size_t>(piece.rows * width_));
    }

    /// Joins what ranges of keys gave, in their order, and writes it.
    void join(const Piece& piece, const Kept& kept, int64_t place, int64_t step, int64_t ranges) {
        for (int64_t r = 0; r < piece.rows; r++) {
            float largest = NOTHING, sum = 0;
            for (int64_t i = 0; i < ranges; i++) {
                const float one = kept.largest[place + i * step + r];
                largest = one > largest ? one : largest;
            }
            const float base = largest == NOTHING ? 0 : largest;
            float* result = results_ + r * width_;
            std::memset(result, 0, sizeof(float) * static_cast<size_t>(width_));
            for (int64_t i = 0; i < ranges; i++) {
                const int64_t from = place + i * step + r;
                const float factor = kept.largest[from] == largest ? 1 : std::exp(kept.largest[from] - base);
                sum += kept.total[from] * factor;
                for (int64_t k = 0; k < width_; k += LANES)
                    store_lanes(load_lanes(result + k) + load_lanes(kept.values + from * width_ + k) * factor, result + k);
            }
            write(piece, r, sum, result);
        }
    }

   private:
    static int64_t copy_size(const Side& side) { return lies_ready(side) ? 0 : padded(side.size) * TILE; }
    int64_t columns_size(int64_t most_rows) const { return most_rows > FEW ? depth_ * TILE : 0; }

    void begin(const Piece& piece, bool few) {
        const Sequence& sequence = *piece.sequence;
        for (int64_t r = 0; r < piece.rows; r++) {
            const int64_t query = (piece.first_row + r) / group_, head = piece.head * group_ + (piece.first_row + r) % group_;
            rows_.data[r] = row_of(all_, sequence, query, head);
            const int64_t from = sequence.query_offset + query * all_.query_token + head * all_.query_head;
            float* to = few ? queries_ + r * depth_ : columns_;
            if (all_.kind == Kind::f32) widen_row(static_cast<const float*>(all_.query) + from, all_.keys.size, to);
            if (all_.kind == Kind::bf16) widen_row(static_cast<const Bfloat16*>(all_.query) + from, all_.keys.size, to);
            if (all_.kind == Kind::f16) widen_row(static_cast<const Half*>(all_.query) + from, all_.keys.size, to);
            if (!few) turn_query(piece, r, to);
        }
        std::memset(results_, 0, sizeof(float) * static_cast<size_t>(piece.rows * width_));
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

    void few_rows(int64_t rows, int64_t start, int64_t count) {
        for (int64_t r = 0; r < rows; r += ROWS)
            multiply_rows(smaller(ROWS, rows - r), queries_ + r * depth_, depth_, keys_, count, products_ + r * TILE);
        float factors[FEW];
        for (int64_t r = 0; r < rows; r++) factors[r] = take_tile(all_, rows_.data[r], start, count, changes_, products_ + r * TILE);
        for (int64_t r = 0; r < rows; r += ROWS)
            grow(smaller(ROWS, rows - r), products_ + r * TILE, values_, count, factors + r, results_ + r * width_, width_);
    }

    void many_rows(int64_t rows, int64_t start, int64_t count) {
        turn_rows(keys_, count, depth_, columns_);
        for (int64_t r = 0; r < rows; r += ROWS) {
            const int64_t some = smaller(ROWS, rows - r), seen = sees(r, some, start, count);
            if (!seen) continue;
            multiply(some, queries_ + r * depth_, depth_, columns_, products_);
            float factors[ROWS];
            for (int64_t i = 0; i < some; i++)
                factors[i] = take_tile(all_, rows_.data[r + i], start, count, changes_, products_ + i * TILE);
            grow(some, products_, values_, seen, factors, results_ + r * width_, width_);
        }
    }

    void write(const Piece& piece, int64_t r, float sum, const float* result) {
        const int64_t query = (piece.first_row + r) / group_, head = piece.head * group_ + (piece.first_row + r) % group_;
        const int64_t to = piece.sequence->output_offset + query * all_.output_token + head * all_.output_head;
        if (all_.kind == Kind::f32) write_row(result, sum, static_cast<float*>(all_.output) + to);
        if (all_.kind == Kind::bf16) write_row(result, sum, static_cast<Bfloat16*>(all_.output) + to);
        if (all_.kind == Kind::f16) write_row(result, sum, static_cast<Half*>(all_.output) + to);
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
    float *const queries_, *const results_, *const products_, *const columns_, *const key_copy_, *const value_copy_;
    RowPointers keys_, values_;
};

/// All pieces of a call.
class Cut {
   public:
    explicit Cut(const Attention& all) : all_(all), group_(all.heads / all.kv_heads), plans_(all.count), many_(rows_of_piece()) {
        for (int64_t i = 0; i < all.count; i++) {
            const Sequence& sequence = all.sequences[i];
            const int64_t rows = sequence.queries * group_;
            Plan& plan = plans_.data[i];
            plan.few = rows <= FEW;
            plan.pieces = !rows ? 0 : plan.few ? parts(sequence.keys, RANGE) : parts(rows, many_);
            if (rows && !plan.pieces) plan.pieces = 1;  // no keys: zeros
            plan.first = pieces;
            plan.first_result = kept_rows;
            pieces += plan.pieces * all.kv_heads;
            if (plan.few && plan.pieces > 1) kept_rows += plan.pieces * all.kv_heads * rows;
            most_rows = most_rows < rows ? rows : most_rows;
            work += rows * sequence.keys * all.kv_heads * (all.keys.size + all.values.size);
        }
        most_rows = most_rows <= FEW ? most_rows : smaller(most_rows, many_);
    }

    const Plan& plan(int64_t sequence) const { return plans_.data[sequence]; }

    /// The sequence that has a piece.
    int64_t sequence_of(int64_t piece) const {
        int64_t low = 0, high = all_.count;
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            (plans_.data[middle].first <= piece ? low : high) = middle;
        }
        return low;
    }

    Piece piece(int64_t sequence, int64_t number) const {
        const Plan& plan = plans_.data[sequence];
        const Sequence& of = all_.sequences[sequence];
        const int64_t inside = number - plan.first, head = inside / plan.pieces, part = inside % plan.pieces;
        const int64_t rows = of.queries * group_;
        if (plan.few) return {&of, head, 0, rows, part * RANGE, smaller(of.keys, (part + 1) * RANGE)};
        // Late queries see more keys than early ones: taken from both ends, neighbouring pieces are equal work for threads.
        const int64_t block = part % 2 ? plan.pieces - 1 - part / 2 : part / 2;
        return {&of, head, block * many_, smaller(many_, rows - block * many_), 0, of.keys};
    }

    /// How many pieces a thread should have at least, so that starting it pays.
    int64_t grain() const { return ENOUGH / (work / pieces + 1) + 1; }

    int64_t pieces = 0, kept_rows = 0, most_rows = 0, work = 0;

   private:
    /// A row's result does not depend on it: rows are computed one beside the other.
    int64_t rows_of_piece() const {
        int64_t rows = 0;
        for (int64_t i = 0; i < all_.count; i++) rows += all_.sequences[i].queries * all_.heads;
        const int64_t each = parts(rows, 4 * threads() * ROWS) * ROWS;
        return each < LEAST ? LEAST : smaller(each, MANY);
    }

    const Attention& all_;
    const int64_t group_;
    Scratch<Plan> plans_;
    const int64_t many_;
};

void join_ranges(const Attention& all, const Cut& cut, const Kept& kept) {
    parallel(all.count * all.kv_heads, 1, [&](int64_t begin, int64_t end) {
        Worker worker(all, cut.most_rows);
        for (int64_t i = begin; i < end; i++) {
            const int64_t sequence = i / all.kv_heads, head = i % all.kv_heads;
            const Plan& plan = cut.plan(sequence);
            if (!plan.few || plan.pieces < 2) continue;
            const Piece piece = cut.piece(sequence, plan.first + head * plan.pieces);
            worker.join(piece, kept, plan.first_result + head * plan.pieces * piece.rows, piece.rows, plan.pieces);
        }
    });
}

}  // namespace

void attention(const Attention& given) {
    const Cut cut(given);
    if (!cut.pieces) return;
    const Scratch<float> largest(cut.kept_rows), total(cut.kept_rows), values(cut.kept_rows * padded(given.values.size));
    const Kept kept{largest.data, total.data, values.data};
    parallel(cut.pieces, cut.grain(), [&](int64_t begin, int64_t end) {
        Worker worker(given, cut.most_rows);
        int64_t sequence = cut.sequence_of(begin);
        for (int64_t i = begin; i < end; i++) {
            while (i >= cut.plan(sequence).first + cut.plan(sequence).pieces * given.kv_heads) sequence++;
            const Plan& plan = cut.plan(sequence);
            const Piece piece = cut.piece(sequence, i);
            worker.run(piece, plan.few);
            if (plan.few && plan.pieces > 1)
                worker.keep(piece, kept, plan.first_result + (i - plan.first) * piece.rows);
            else
                worker.finish(piece);
        }
    });
    if (cut.kept_rows) join_ranges(given, cut, kept);
}

}  // namespace dlinfer::DLINFER_LEVEL
