/* The adaptor: rules (convert_config.yaml) applied at run time in front of any DIOPI library.
 *
 * Whoever loads a library asks `diopi_adaptor_symbol` for its functions instead of asking the library. An operator that has rules
 * is answered with a function of the same signature that converts tensors on the way in and out; one that has none is answered with
 * the library's own function, so it costs nothing.
 *
 * Order: set_lookup, set_memory, configure, then symbol. Temporaries come from diopiRequireTensor: the runtime functions of DIOPI
 * (libdiopirt) must be in the process. There is one adaptor in a process.
 */
#ifndef DIOPI_ADAPTOR_H_
#define DIOPI_ADAPTOR_H_

#include <diopi/diopirt.h>
#include <dipu/vendor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How to find the library's own functions. dlsym has this form: its owner is the handle of the library. */
typedef void* (*diopiAdaptorLookup)(void* owner, const char* name);

/* What the conversions of one operator cost so far. */
typedef struct {
    const char* name;
    uint64_t calls;            /* of the operator */
    uint64_t composed;         /* of them: made of other operators, because the library lacks it */
    uint64_t conversions;      /* of tensors, in and out */
    uint64_t on_host;          /* of them: done on the host, because the library has no conversion, or a range had to be checked */
    uint64_t bytes;            /* read and written by conversions */
    uint64_t nanoseconds;      /* in conversions */
    uint64_t call_nanoseconds; /* in the library's function */
    uint64_t errors;           /* calls refused because a value did not fit */
} diopiAdaptorCost;

DIOPI_API void diopi_adaptor_set_lookup(diopiAdaptorLookup lookup, void* owner);
/* Where device memory is: the vendor's table, or NULL where it is host memory. The table must stay. */
DIOPI_API void diopi_adaptor_set_memory(const dipuVendorTable* vendor);
/* Takes rules in the form that `diopi.adaptor` makes of convert_config.yaml; replaces earlier ones and forgets the costs.
 * Not while operators run. 0: taken; otherwise diopi_adaptor_last_error says what is wrong. */
DIOPI_API int diopi_adaptor_configure(const char* rules);
/* The function to call for an operator; NULL if neither the library nor a composite has it. */
DIOPI_API void* diopi_adaptor_symbol(const char* name);
/* Why a call of this thread failed in the adaptor; empty if it did not. Told once: an older reason is not taken for a newer one. */
DIOPI_API const char* diopi_adaptor_last_error(void);
/* Calls `row` for every operator that was called through the adaptor. */
DIOPI_API void diopi_adaptor_report(void (*row)(void* owner, const diopiAdaptorCost* cost), void* owner);

#ifdef __cplusplus
}
#endif
#endif /* DIOPI_ADAPTOR_H_ */
