// Products of any dimensions, factorisations, triangular systems and distances. Halves are computed in float32 and rounded once.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_cdist_backward.h>
#include <ATen/ops/_cdist_forward.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/polar.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "results.h"

using namespace dipu_vendor;

namespace {

using at::Tensor;
using Given = std::optional<Tensor>;

// What was broadcast in the forward function is added up.
Tensor summed_to(const Tensor& gradient, at::IntArrayRef shape) {
    TORCH_CHECK(at::is_expandable_to(shape, gradient.sizes()), "a gradient of the shape ", gradient.sizes(),
                " does not belong to the shape ", shape);
    return at::sum_to(gradient, shape);
}

void check_square(const Tensor& matrix) {
    TORCH_CHECK(matrix.dim() >= 2 && matrix.size(-1) == matrix.size(-2), "there must be square matrices, not the shape ", matrix.sizes());
}

void check_floating(const Tensor& tensor) {
    TORCH_CHECK(tensor.is_floating_point() || tensor.is_complex(), "the dtype must be floating or complex, not ", tensor.scalar_type());
}

// Vectors as the matrices that matmul makes of them, and the gradient to match.
struct Product {
    Tensor a, b, grad;

    Product(const Tensor& input, const Tensor& other, const Tensor& grad_out) : a(upcast(input)), b(upcast(other)), grad(upcast(grad_out)) {
        TORCH_CHECK(a.dim() > 0 && b.dim() > 0, "both operands must have a dimension");
        check_floating(a);
        if (b.dim() == 1) b = b.unsqueeze(-1), grad = grad.unsqueeze(-1);
        if (a.dim() == 1) a = a.unsqueeze(0), grad = grad.unsqueeze(-2);
        TORCH_CHECK(a.size(-1) == b.size(-2) && grad.dim() >= 2 && grad.size(-2) == a.size(-2) && grad.size(-1) == b.size(-1),
                    "operands and gradient do not belong together: ", input.sizes(), ", ", other.sizes(), ", ", grad_out.sizes());
    }
    Tensor left() const { return summed_to(at::matmul(grad, b.mH()), a.sizes()); }
    Tensor right() const { return summed_to(at::matmul(a.mH(), grad), b.sizes()); }
};

// A = L L^H: the gradient of A is half of L^-H P L^-1, where P is the lower triangle of L^H times the gradient of L, mirrored. Of a
// complex diagonal the imaginary part stays, as in PyTorch.
Tensor cholesky_gradient(const Tensor& grad, const Tensor& factor) {
    const Tensor product = at::matmul(factor.mH(), grad);
    const Tensor middle = (product.tril() + product.tril(-1).mH()) * 0.5;
    const Tensor half_way = at::linalg_solve_triangular(factor.mH(), middle, /*upper=*/true, /*left=*/true, /*unitriangular=*/false);
    return at::linalg_solve_triangular(factor, half_way, /*upper=*/false, /*left=*/false, /*unitriangular=*/false);
}

struct Triangle {
    bool upper, transpose, unitriangular;
};

void solve_gradients(Given& grad_b, Given& grad_mat, const Given& grad_x, const Given& grad_clone, const Tensor& x, const Tensor& b,
                     const Tensor& mat, Triangle how) {
    check_square(mat);
    const Tensor matrix = upcast(mat), solution = upcast(x);
    Tensor of_b = at::zeros_like(solution), of_matrix = at::zeros_like(matrix);
    if (grad_x) {
        TORCH_CHECK(grad_x->sizes() == x.sizes(), "grad_x has the shape ", grad_x->sizes(), " but the solution has ", x.sizes());
        const bool wants_upper = how.transpose ? how.upper : !how.upper;  // of the adjoint system
        const Tensor adjoint = how.transpose ? matrix.conj() : matrix.mH();
        of_b = at::linalg_solve_triangular(adjoint, upcast(*grad_x), wants_upper, /*left=*/true, how.unitriangular);
        const Tensor full = how.transpose ? -at::matmul(solution.conj(), of_b.mT()) : -at::matmul(of_b, solution.mH());
        const int64_t off = how.unitriangular ? 1 : 0;
        of_matrix = how.upper ? full.triu(off) : full.tril(-off);
    }
    if (grad_clone) of_matrix = of_matrix + upcast(*grad_clone);
    write(grad_b, summed_to(of_b, b.sizes()));
    write(grad_mat, summed_to(of_matrix, mat.sizes()));
}

void check_points(const Tensor& a, const Tensor& b, double p) {
    TORCH_CHECK(a.dim() >= 2 && b.dim() >= 2 && a.size(-1) == b.size(-1), "points of the shapes ", a.sizes(), " and ", b.sizes(),
                " have no distance");
    TORCH_CHECK(p >= 0, "p must not be negative, it is ", p);
}

}  // namespace

diopiError_t diopiMatmul(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input,
                         diopiConstTensorHandle_t other) {
    return run(ctx, __func__, [](Tensor& o, Tensor& a, Tensor& b) { write(o, at::matmul(a, b)); }, out, input, other);
}

diopiError_t diopiMatmulBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_other,
                                 diopiConstTensorHandle_t grad_out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    return run(ctx, __func__, [](Given ga, Given gb, Tensor& g, Tensor& a, Tensor& b) {
        const Product product(a, b, g);
        if (ga) write(*ga, product.left().view(a.sizes()));
        if (gb) write(*gb, product.right().view(b.sizes()));
    }, maybe(grad_input), maybe(grad_other), grad_out, input, other);
}

diopiError_t diopiLinear(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight,
                         diopiConstTensorHandle_t bias) {
    return run(ctx, __func__, [](Tensor& o, Tensor& x, Tensor& w, Given b) {
        TORCH_CHECK(x.dim() > 0 && w.dim() == 2 && w.size(1) == x.size(-1), "an input of ", x.sizes(), " does not fit the weight ",
                    w.sizes());
        write(o, at::linear(x, w, b));
    }, out, input, weight, maybe(bias));
}

diopiError_t diopiLinearBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiTensorHandle_t grad_weight,
                                 diopiTensorHandle_t grad_bias, diopiConstTensorHandle_t grad_output, diopiConstTensorHandle_t input,
                                 diopiConstTensorHandle_t weight) {
    return run(ctx, __func__, [](Given gx, Given gw, Given gb, Tensor& grad_output, Tensor& x, Tensor& w) {
        TORCH_CHECK(x.dim() > 0 && w.dim() == 2 && w.size(1) == x.size(-1) && grad_output.dim() == x.dim() &&
                        grad_output.size(-1) == w.size(0) && grad_output.sizes().slice(0, x.dim() - 1) == x.sizes().slice(0, x.dim() - 1),
                    "gradient, input and weight do not belong together: ", grad_output.sizes(), ", ", x.sizes(), ", ", w.sizes());
        check_floating(x);
        const int64_t rows = x.size(-1) ? x.numel() / x.size(-1) : grad_output.numel() / std::max<int64_t>(w.size(0), 1);
        const Tensor g = upcast(grad_output).reshape({rows, w.size(0)}), flat = upcast(x).reshape({rows, w.size(1)});
        if (gx) write(*gx, at::matmul(g, upcast(w).conj()).view(x.sizes()));
        if (gw) write(*gw, at::matmul(g.t(), flat.conj()));
        if (gb) write(*gb, g.sum(0));
    }, maybe(grad_input), maybe(grad_weight), maybe(grad_bias), grad_output, input, weight);
}

// ---- factorisations ----

diopiError_t diopiCholesky(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t info, diopiConstTensorHandle_t mat,
                           bool upper, bool checkerror) {
    return run(ctx, __func__, [](Tensor& o, Tensor& info, Tensor& matrix, bool upper, bool checkerror) {
        check_square(matrix);
        const auto [factor, minors] = at::linalg_cholesky_ex(upcast(matrix), upper, checkerror);
        write(o, factor);
        write(info, minors);
    }, out, info, mat, upper, checkerror);
}

diopiError_t diopiCholeskyBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_mat, diopiConstTensorHandle_t grad_output,
                                   diopiConstTensorHandle_t L, bool upper) {
    return run(ctx, __func__, [](Tensor& o, Tensor& grad_output, Tensor& given, bool upper) {
        check_square(given);
        check_floating(given);
        TORCH_CHECK(grad_output.sizes() == given.sizes(), "grad_output has the shape ", grad_output.sizes(), " but the factor has ",
                    given.sizes());
        const Tensor g = upcast(grad_output), factor = upcast(given);
        write(o, upper ? cholesky_gradient(g.mH(), factor.mH()) : cholesky_gradient(g, factor));
    }, grad_mat, grad_output, L, upper);
}

diopiError_t diopiTriangularSolve(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t cloned_mat,
                                  diopiConstTensorHandle_t b, diopiConstTensorHandle_t mat, bool upper, bool transpose,
                                  bool unitriangular) {
    return run(ctx, __func__, [](Tensor& o, Tensor& clone, Tensor& b, Tensor& matrix, bool upper, bool transpose, bool unitriangular) {
        check_square(matrix);
        TORCH_CHECK(b.dim() >= 2 && b.size(-2) == matrix.size(-1), "a right side of ", b.sizes(), " does not fit the matrix ",
                    matrix.sizes());
        const Tensor left = transpose ? upcast(matrix).mT() : upcast(matrix);  // the transposed triangle is the other one
        write(o, at::linalg_solve_triangular(left, upcast(b), upper != transpose, /*left=*/true, unitriangular));
        Dims shape(o.sizes().begin(), o.sizes().end());
        shape[shape.size() - 1] = matrix.size(-1);
        write(clone, matrix.expand(shape));
    }, out, cloned_mat, b, mat, upper, transpose, unitriangular);
}

diopiError_t diopiTriangularSolveBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_b, diopiTensorHandle_t grad_mat,
                                          diopiConstTensorHandle_t grad_x, diopiConstTensorHandle_t grad_cloned_mat,
                                          diopiConstTensorHandle_t x, diopiConstTensorHandle_t b, diopiConstTensorHandle_t mat, bool upper,
                                          bool transpose, bool unitriangular) {
    return run(ctx, __func__,
        [](Given gb, Given gm, Given gx, Given gc, Tensor& x, Tensor& b, Tensor& matrix, bool upper, bool transpose, bool unit) {
            solve_gradients(gb, gm, gx, gc, x, b, matrix, {upper, transpose, unit});
        }, maybe(grad_b), maybe(grad_mat), maybe(grad_x), maybe(grad_cloned_mat), x, b, mat, upper, transpose, unitriangular);
}

diopiError_t diopiLinalgQR(diopiContextHandle_t ctx, diopiConstTensorHandle_t A, const char* mode, diopiTensorHandle_t Q,
                           diopiTensorHandle_t R) {
    return run(ctx, __func__, [](Tensor& a, std::string mode, Given q_out, Tensor& r_out) {
        TORCH_CHECK(q_out || mode == "r", "Q may be absent in the mode \"r\" only");
        const auto [q, r] = at::linalg_qr(upcast(a), mode);
        write(q_out, q);
        write(r_out, r);
    }, A, mode, maybe(Q), R);
}

// ---- distances ----

diopiError_t diopiCdist(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input1, diopiConstTensorHandle_t input2,
                        double p, const int64_t* compute_mode) {
    return run(ctx, __func__, [](Tensor& o, Tensor& a, Tensor& b, double p, std::optional<int64_t> mode) {
        check_points(a, b, p);
        write(o, at::_cdist_forward(upcast(a), upcast(b), p, mode));
    }, out, input1, input2, p, compute_mode);
}

diopiError_t diopiCdistBackward(diopiContextHandle_t ctx, diopiTensorHandle_t grad_input, diopiConstTensorHandle_t grad_output,
                                diopiConstTensorHandle_t input1, diopiConstTensorHandle_t input2, double p,
                                diopiConstTensorHandle_t cdist) {
    return run(ctx, __func__, [](Tensor& o, Tensor& g, Tensor& a, Tensor& b, double p, Tensor& given) {
        check_points(a, b, p);
        const Tensor x1 = upcast(a), x2 = upcast(b);
        const auto batch = at::infer_size_dimvector(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
        auto pairs = batch, points = batch;
        pairs.append({a.size(-2), b.size(-2)});
        points.append({a.size(-2), a.size(-1)});
        TORCH_CHECK(g.sizes() == at::IntArrayRef(pairs) && given.sizes() == g.sizes(), "grad_output ", g.sizes(), " and cdist ",
                    given.sizes(), " do not belong to points of ", a.sizes(), " and ", b.sizes());
        // Which coordinate is the farthest is asked by equality, which rounded distances do not have.
        const Tensor distance = std::isinf(p) ? at::_cdist_forward(x1, x2, p, std::nullopt) : upcast(given);
        // Where there is no pair ATen gives zeros of the first points' shape, not of the common batch.
        const Tensor gradient = at::_cdist_backward(upcast(g).contiguous(), x1.contiguous(), x2.contiguous(), p, distance.contiguous());
        write(o, summed_to(gradient.expand(points), o.sizes()));
    }, grad_input, grad_output, input1, input2, p, cdist);
}

diopiError_t diopiPolar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t abs, diopiConstTensorHandle_t angle) {
    return run(ctx, __func__, [](Tensor& o, Tensor& r, Tensor& turn) { write(o, at::polar(upcast(r), upcast(turn))); }, out, abs, angle);
}
