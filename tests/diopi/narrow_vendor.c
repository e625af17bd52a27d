/* A chip that knows int32 and float32 only, wants its inputs without gaps, and images with the channels last.
 * GOOD_CASTS, BAD_CASTS: it has conversions of its own, right ones or ones that do nothing and say they did. */
#include <diopi/functions.h>
#include <math.h>

static const char* trouble = "";
int casts; /* how often its own conversion was called */

const char* diopiGetVendorName(void) { return "narrow"; }
const char* diopiGetLastErrorString(void) { return trouble; }

typedef struct {
    diopiSize_t shape, stride;
    diopiDtype_t dtype;
    int64_t numel;
    float* f;
    int32_t* i;
} Given;

static Given given(diopiConstTensorHandle_t th) {
    Given g;
    const void* data;
    diopiGetTensorShape(th, &g.shape);
    diopiGetTensorStride(th, &g.stride);
    diopiGetTensorDtype(th, &g.dtype);
    diopiGetTensorNumel(th, &g.numel);
    diopiGetTensorDataConst(th, &data);
    g.f = (float*)data;
    g.i = (int32_t*)data;
    return g;
}

/* 0: what this chip takes. `last`: an image must have its channels last. */
static diopiError_t check(const Given* g, bool last) {
    static const int order[] = {1, 3, 2, 0};
    const bool image = g->shape.len == 4 && last;
    if (g->dtype != diopi_dtype_int32 && g->dtype != diopi_dtype_float32) return diopiDtypeNotSupported;
    int64_t step = 1;
    for (int64_t n = 0; n < g->shape.len; ++n) {
        const int64_t d = image ? order[n] : g->shape.len - 1 - n;
        if (g->shape.data[d] > 1 && g->stride.data[d] != step) {
            trouble = image ? "an image is not NHWC" : "a tensor is not contiguous";
            return diopiErrorOccurred;
        }
        step *= g->shape.data[d];
    }
    return diopiSuccess;
}

static double number(const diopiScalar_t* s) { return s->stype <= 7 ? (double)s->ival : s->fval; }

#define TAKE(name, th, last)                                          \
    Given name = given(th);                                           \
    {                                                                 \
        const diopiError_t status = check(&name, last);               \
        if (status != diopiSuccess) return status;                    \
    }
#define EACH(a, expression)                                           \
    for (int64_t n = 0; n < a.numel; ++n)                             \
        if (a.dtype == diopi_dtype_int32) a.i[n] = (int32_t)(expression); \
        else a.f[n] = (float)(expression);                            \
    return diopiSuccess
#define AT(a, n) (a.dtype == diopi_dtype_int32 ? (double)a.i[n] : (double)a.f[n])

diopiError_t diopiAdd(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t other,
                      const diopiScalar_t* alpha) {
    TAKE(o, out, false) TAKE(a, input, false) TAKE(b, other, false)
    EACH(o, AT(a, n) + number(alpha) * AT(b, b.numel == 1 ? 0 : n));
}
diopiError_t diopiAddInp(diopiContextHandle_t ctx, diopiTensorHandle_t input, diopiConstTensorHandle_t other, const diopiScalar_t* alpha) {
    TAKE(a, input, false) TAKE(b, other, false)
    EACH(a, AT(a, n) + number(alpha) * AT(b, n));
}
diopiError_t diopiMul(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t other) {
    TAKE(o, out, false) TAKE(a, input, false) TAKE(b, other, false)
    EACH(o, AT(a, n) * AT(b, n));
}
diopiError_t diopiMulScalar(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, const diopiScalar_t* other) {
    TAKE(o, out, false) TAKE(a, input, false)
    EACH(o, AT(a, n) * number(other));
}
diopiError_t diopiMm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input, diopiConstTensorHandle_t mat2) {
    TAKE(o, out, false) TAKE(a, input, false) TAKE(b, mat2, false)
    const int64_t depth = a.shape.data[1], columns = b.shape.data[1];
    for (int64_t n = 0; n < o.numel; ++n) {
        double sum = 0;
        for (int64_t k = 0; k < depth; ++k) sum += AT(a, n / columns * depth + k) * AT(b, k * columns + n % columns);
        if (o.dtype == diopi_dtype_int32) o.i[n] = (int32_t)sum;
        else o.f[n] = (float)sum;
    }
    return diopiSuccess;
}
diopiError_t diopiFill(diopiContextHandle_t ctx, diopiTensorHandle_t input, const diopiScalar_t* value) {
    TAKE(a, input, false)
    EACH(a, number(value));
}
/* images, channels last on both sides */
diopiError_t diopiRelu(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    TAKE(o, out, true) TAKE(a, input, true)
    EACH(o, AT(a, n) > 0 ? AT(a, n) : 0);
}
/* reads channels last, writes channels first */
diopiError_t diopiNeg(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    TAKE(o, out, false) TAKE(a, input, true)
    const int64_t* s = a.shape.data;
    for (int64_t n = 0; n < o.numel; ++n) {
        const int64_t w = n % s[3], h = n / s[3] % s[2], c = n / s[3] / s[2] % s[1], b = n / s[3] / s[2] / s[1];
        o.f[n] = -a.f[((b * s[2] + h) * s[3] + w) * s[1] + c];
    }
    return diopiSuccess;
}
diopiError_t diopiCat(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t* tensors, int64_t num_inputs, int64_t dim) {
    TAKE(o, out, false)
    int64_t at = 0;
    for (int64_t t = 0; t < num_inputs; ++t) {
        TAKE(a, tensors[t], false)
        for (int64_t n = 0; n < a.numel; ++n) o.i[at++] = a.i[n];
    }
    return diopiSuccess;
}
diopiError_t diopiNonzero(diopiContextHandle_t ctx, diopiTensorHandle_t* out, diopiConstTensorHandle_t input) {
    TAKE(a, input, false)
    int64_t sizes[] = {0, 1};
    const diopiSize_t size = {sizes, 2};
    for (int64_t n = 0; n < a.numel; ++n) sizes[0] += AT(a, n) != 0;
    if (diopiRequireTensor(ctx, out, &size, 0, diopi_dtype_int32, diopi_device) != diopiSuccess) return diopiErrorOccurred;
    Given o = given(*out);
    for (int64_t n = 0, at = 0; n < a.numel; ++n)
        if (AT(a, n) != 0) o.i[at++] = (int32_t)n;
    return diopiSuccess;
}
/* an optional tensor: whether it is there */
diopiError_t diopiLayerNorm(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiTensorHandle_t save_mean, diopiTensorHandle_t save_invstd,
                            diopiConstTensorHandle_t input, diopiConstTensorHandle_t weight, diopiConstTensorHandle_t bias,
                            diopiSize_t normalized_shape, double eps) {
    TAKE(o, out, false)
    EACH(o, (save_mean != 0) + 10 * (weight != 0) + 100 * (bias != 0));
}

#if defined(GOOD_CASTS) || defined(BAD_CASTS)
/* everything between the two reals and between the two integers, for tensors without gaps */
diopiError_t diopiCastDtype(diopiContextHandle_t ctx, diopiTensorHandle_t out, diopiConstTensorHandle_t input) {
    ++casts;
#ifdef GOOD_CASTS
    Given o = given(out), a = given(input);
    for (int64_t n = 0; n < o.numel; ++n) {
        if (o.dtype == diopi_dtype_int64 && a.dtype == diopi_dtype_int32) ((int64_t*)o.i)[n] = a.i[n];
        else if (o.dtype == diopi_dtype_float64 && a.dtype == diopi_dtype_float32) ((double*)o.f)[n] = a.f[n];
        else return diopiDtypeNotSupported;
    }
#endif
    return diopiSuccess;
}
#endif
