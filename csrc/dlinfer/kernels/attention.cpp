#include "attention.h"

#include "attention_worker.h"
#include "parallel.h"

namespace dlinfer::DLINFER_CPU_CAPABILITY {
namespace {

/// Rows of a piece of work that turns keys, for which turning them is little; with many threads down to the second number.
constexpr int64_t MANY = 40 * ROWS, LEAST = 8 * ROWS;
/// Sequences of up to LEAST rows (new tokens) are cut into ranges of as many keys instead. Not chosen by the number of threads: sums would
/// differ.
constexpr int64_t RANGE = 16 * TILE;
/// Products that take longer than it takes to start a thread.
constexpr int64_t ENOUGH = 200'000;

int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

/// How one sequence is cut into pieces of work.
struct Plan {
    bool ranged;           // into ranges of keys, else into blocks of rows
    int64_t pieces;        // for the same heads
    int64_t together;      // heads of keys of a piece
    int64_t first;         // number of its first piece
    int64_t first_result;  // row of kept results, where the pieces are ranges of keys
};

/// All pieces of a call. What a row's result is does not depend on any choice made here.
class Cut {
   public:
    explicit Cut(const Attention& all) : all_(all), group_(all.heads / all.kv_heads), plans_(all.count), many_(rows_of_piece()) {
        int64_t ranges = 0;
        for (int64_t i = 0; i < all.count; i++) ranges += plan_sequence(i);
        for (int64_t i = 0; i < all.count; i++) number_sequence(i, ranges >= 2 * threads() || threads() == 1);
    }

    const Plan& plan(int64_t sequence) const { return plans_.data[sequence]; }
    int64_t last(int64_t sequence) const { return plan(sequence).first + plan(sequence).pieces * all_.kv_heads / plan(sequence).together; }

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
        const int64_t inside = number - plan.first, head = inside / plan.pieces * plan.together, part = inside % plan.pieces;
        const int64_t rows = of.queries * group_;
        if (plan.ranged) return {&of, rows <= FEW, head, plan.together, 0, rows, part * RANGE, smaller(of.keys, (part + 1) * RANGE)};
        // Late queries see more keys than early ones: taken from both ends, neighbouring pieces are equal work for threads.
        const int64_t block = part % 2 ? plan.pieces - 1 - part / 2 : part / 2;
        return {&of, false, head, 1, block * many_, smaller(many_, rows - block * many_), 0, of.keys};
    }

    /// Where the results of a range of keys are kept: ranges of one head behind each other.
    int64_t index(int64_t sequence, int64_t head, int64_t range) const {
        const Plan& plan = plans_.data[sequence];
        return plan.first_result + (head * plan.pieces + range) * all_.sequences[sequence].queries * group_;
    }

    /// How many pieces a thread should have at least, so that starting it pays.
    int64_t grain() const { return ENOUGH / (work / pieces + 1) + 1; }

    Worker worker() const { return {all_, most_rows, turns}; }

    int64_t pieces = 0, kept_rows = 0, most_rows = 0, work = 0;
    bool turns = false;

   private:
    int64_t rows_of_piece() const {
        int64_t rows = 0;
        for (int64_t i = 0; i < all_.count; i++) rows += all_.sequences[i].queries * all_.heads;
        const int64_t each = parts(rows, 4 * threads() * ROWS) * ROWS;
        return each < LEAST ? LEAST : smaller(each, MANY);
    }

    /// Returns the number of ranges of keys.
    int64_t plan_sequence(int64_t i) {
        const Sequence& sequence = all_.sequences[i];
        const int64_t rows = sequence.queries * group_;
        Plan& plan = plans_.data[i];
        plan.ranged = rows <= LEAST;
        plan.pieces = plan.ranged ? parts(sequence.keys, RANGE) : parts(rows, many_);
        if (!plan.pieces) plan.pieces = 1;  // no keys: zeros
        if (!rows) plan.pieces = 0;
        return plan.ranged ? plan.pieces : 0;
    }

    void number_sequence(int64_t i, bool all_heads) {
        const Sequence& sequence = all_.sequences[i];
        const int64_t rows = sequence.queries * group_;
        Plan& plan = plans_.data[i];
        plan.together = rows <= FEW && all_heads ? all_.kv_heads : 1;
        plan.first = pieces;
        plan.first_result = kept_rows;
        pieces = last(i);
        if (plan.ranged && plan.pieces > 1) kept_rows += plan.pieces * all_.kv_heads * rows;
        turns |= rows > FEW;
        const int64_t most = plan.ranged ? rows * plan.together : smaller(rows, many_);
        most_rows = most_rows < most ? most : most_rows;
        work += rows * sequence.keys * all_.kv_heads * (all_.keys.size + all_.values.size);
    }

    const Attention& all_;
    const int64_t group_;
    Scratch<Plan> plans_;
    const int64_t many_;
};

void join_ranges(const Attention& all, const Cut& cut, const Kept& kept) {
    parallel(all.count * all.kv_heads, 1, [&](int64_t begin, int64_t end) {
        Worker worker = cut.worker();
        for (int64_t i = begin; i < end; i++) {
            const int64_t sequence = i / all.kv_heads, head = i % all.kv_heads;
            const Plan& plan = cut.plan(sequence);
            if (!plan.ranged || plan.pieces < 2) continue;
            Piece piece = cut.piece(sequence, plan.first);
            piece.first_head = head, piece.heads = 1;
            worker.join(piece, kept, cut.index(sequence, head, 0), plan.pieces);
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
        Worker worker = cut.worker();
        int64_t sequence = cut.sequence_of(begin);
        for (int64_t i = begin; i < end; i++) {
            while (i >= cut.last(sequence)) sequence++;
            const Plan& plan = cut.plan(sequence);
            const Piece piece = cut.piece(sequence, i);
            worker.run(piece);
            if (!plan.ranged || plan.pieces < 2) {
                worker.finish(piece);
                continue;
            }
            for (int64_t head = 0; head < piece.heads; head++)
                worker.keep(piece, head, kept, cut.index(sequence, piece.first_head + head, piece.first_key / RANGE));
        }
    });
    if (cut.kept_rows) join_ranges(given, cut, kept);
}

}  // namespace dlinfer::DLINFER_CPU_CAPABILITY
