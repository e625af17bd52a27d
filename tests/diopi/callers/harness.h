/* For callers that are typed by hand: an operator is called with literal numbers, and what it writes is compared with literal
 * numbers. Nothing here is generated, so that an argument in the wrong place cannot be wrong on both sides.
 */
#ifndef DIOPI_TESTS_HARNESS_H_
#define DIOPI_TESTS_HARNESS_H_

#include <diopi/functions.h>
#include <diopi/functions_ext.h>

typedef diopiTensorHandle_t Tensor;
typedef diopiConstTensorHandle_t ConstTensor;

/* The context of the caller that runs. */
extern diopiContextHandle_t ctx;

#define COUNT(...) (sizeof((double[]){__VA_ARGS__}) / sizeof(double))
#define SIZE(...) ((diopiSize_t){(const int64_t[]){__VA_ARGS__}, COUNT(__VA_ARGS__)})
#define NONE ((diopiSize_t){NULL, 0})
#define REAL(value) (&(diopiScalar_t){.stype = diopi_dtype_float64, .fval = (value)})
#define WHOLE(value) (&(diopiScalar_t){.stype = diopi_dtype_int64, .ival = (value)})
/* Lists of tensors. */
#define READ(...) ((ConstTensor[]){__VA_ARGS__})
#define WRITTEN(...) ((Tensor[]){__VA_ARGS__})

/* A tensor with these numbers. */
#define FLOATS(size, ...) tensor_of(diopi_dtype_float32, size, COUNT(__VA_ARGS__), (double[]){__VA_ARGS__})
#define INT64S(size, ...) tensor_of(diopi_dtype_int64, size, COUNT(__VA_ARGS__), (double[]){__VA_ARGS__})
#define INT32S(size, ...) tensor_of(diopi_dtype_int32, size, COUNT(__VA_ARGS__), (double[]){__VA_ARGS__})
#define BOOLS(size, ...) tensor_of(diopi_dtype_bool, size, COUNT(__VA_ARGS__), (double[]){__VA_ARGS__})
/* A tensor to be written; it holds rubbish. */
#define OUT(size) empty(diopi_dtype_float32, size)
#define OUT_OF(dtype, size) empty(diopi_dtype_##dtype, size)

#define CALL(expression) called(expression, #expression)
/* Real and imaginary parts are two numbers. */
#define EXPECT(tensor, ...) expect(tensor, #tensor, COUNT(__VA_ARGS__), (double[]){__VA_ARGS__})

/* CALLER(diopiSub) { ... } runs under that name. */
#define CALLER(name)                                                                   \
    static void caller_##name(void);                                                   \
    __attribute__((constructor)) static void enlist_##name(void) {                     \
        enlist(#name, caller_##name, (void (*)(void))name); /* weak: NULL if missing */ \
    }                                                                                  \
    static void caller_##name(void)

void enlist(const char* name, void (*caller)(void), void (*function)(void));
Tensor tensor_of(diopiDtype_t dtype, diopiSize_t size, size_t count, const double* numbers);
Tensor empty(diopiDtype_t dtype, diopiSize_t size);
void called(diopiError_t status, const char* expression);
void expect(ConstTensor tensor, const char* text, size_t count, const double* numbers);

#endif /* DIOPI_TESTS_HARNESS_H_ */
