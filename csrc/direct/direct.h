/* The runtime functions of DIOPI without a framework: what `diopi.library` loads to call a vendor's library by itself.
 *
 * Tensors are plain records over memory that the caller allocated; a context frees what the vendor required during its call.
 * Functions that can fail return 0 for success, otherwise `diopi_direct_problem` tells this thread what was wrong.
 */
#ifndef DIOPI_DIRECT_H_
#define DIOPI_DIRECT_H_

#include <diopi/diopirt.h>
#include <dipu/vendor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct diopiMachine diopiMachine;

DIOPI_API const char* diopi_direct_problem(void);

/* Puts the functions into libdiopirt's table. Fails if something else (a framework) is there. */
DIOPI_API int diopi_direct_install(void);
/* Whether the table is this library's. */
DIOPI_API int diopi_direct_installed(void);
/* Gives back the table that was there before. */
DIOPI_API void diopi_direct_uninstall(void);

/* Where memory comes from: a vendor's table, or the host's malloc if `vendor` is NULL. */
DIOPI_API diopiMachine* diopi_direct_machine_create(const dipuVendorTable* vendor, int device);
DIOPI_API void diopi_direct_machine_destroy(diopiMachine* machine);
DIOPI_API int diopi_direct_allocate(diopiMachine* machine, size_t bytes, void** pointer);
DIOPI_API int diopi_direct_free(diopiMachine* machine, void* pointer);
DIOPI_API int diopi_direct_write(diopiMachine* machine, void* device_pointer, const void* host_pointer, size_t bytes);
DIOPI_API int diopi_direct_read(diopiMachine* machine, void* host_pointer, const void* device_pointer, size_t bytes);
/* From now on memory that a library requires is filled with this byte, so that who reads it unwritten is seen, and lies between guards
 * (diopi_direct_required_damage). -1: it is left as it is. */
DIOPI_API void diopi_direct_watch_required(diopiMachine* machine, int byte);
DIOPI_API int diopi_direct_fill(diopiMachine* machine, void* device_pointer, int byte, size_t bytes);
DIOPI_API int diopi_direct_synchronize(diopiMachine* machine);

DIOPI_API diopiContextHandle_t diopi_direct_context_create(diopiMachine* machine);
DIOPI_API void diopi_direct_context_destroy(diopiContextHandle_t ctx);
/* A function of an operator's own signature that calls `function`, which has it too, for the context that is its first argument. A C++
 * exception that the library lets out ends there: the answer is diopiErrorOccurred, and `diopi_direct_context_thrown` tells what it
 * said (else it is empty). NULL for a name that is no operator. */
DIOPI_API void* diopi_direct_guard(const char* name);
DIOPI_API void diopi_direct_context_aim(diopiContextHandle_t ctx, void* function);
DIOPI_API const char* diopi_direct_context_thrown(diopiContextHandle_t ctx);
/* How many tensors the vendor required through this context, and one of them; NULL if there is none of this number. */
DIOPI_API int64_t diopi_direct_context_owned(diopiContextHandle_t ctx);
DIOPI_API diopiTensorHandle_t diopi_direct_context_required(diopiContextHandle_t ctx, int64_t number);
/* How many bytes were written in front of and behind a tensor that was required while it was watched. The work must be done. */
DIOPI_API int diopi_direct_required_damage(diopiContextHandle_t ctx, diopiConstTensorHandle_t th, int64_t* front, int64_t* behind);

/* `storage` NULL: the storage is the data. `nbytes` < 0: as far as the shape reaches. */
DIOPI_API diopiTensorHandle_t diopi_direct_tensor_create(void* data, int64_t dims, const int64_t* shape, const int64_t* stride, int dtype,
                                                         int device, int device_index, void* storage, int64_t offset, int64_t nbytes);
DIOPI_API int diopi_direct_tensor_make_sparse(diopiTensorHandle_t th, diopiConstTensorHandle_t crow_indices,
                                              diopiConstTensorHandle_t col_indices, diopiConstTensorHandle_t values);
DIOPI_API void diopi_direct_tensor_destroy(diopiTensorHandle_t th);

DIOPI_API diopiGeneratorHandle_t diopi_direct_generator_create(diopiMachine* machine, const void* state, size_t bytes, uint64_t seed,
                                                               uint64_t offset);
DIOPI_API size_t diopi_direct_generator_state(diopiGeneratorHandle_t th, void* state, size_t capacity);
DIOPI_API void diopi_direct_generator_destroy(diopiGeneratorHandle_t th);

#ifdef __cplusplus
}
#endif
#endif /* DIOPI_DIRECT_H_ */
