/* What the handles point to. Each record begins with a mark, so that a handle of the wrong kind is an error and no crash. */
#ifndef DIOPI_DIRECT_RECORDS_H_
#define DIOPI_DIRECT_RECORDS_H_

#include "direct.h"

enum { MARK_TENSOR = 0x44495431, MARK_CONTEXT = 0x44495432, MARK_GENERATOR = 0x44495433 };

/* More dimensions than any operator has; a larger number is a mistake of the caller. */
enum { MOST_DIMS = 64 };

/* Bytes on each side of watched memory, and what they hold. So many that the memory between them is aligned as before. */
enum { GUARD_BYTES = 512, GUARD_PATTERN = 0x5A };

struct diopiMachine {
    dipuVendorTable vendor; /* entries past the vendor's own size are NULL */
    bool has_vendor;
    int device;
    void* stream;
    int fill; /* what memory that the library requires is filled with; -1: nothing, and it has no guards */
};

struct diopiTensor {
    uint32_t mark;
    int32_t device_index;
    diopiDtype_t dtype;
    diopiDevice_t device;
    void* data;
    void* storage;
    int64_t offset;
    size_t nbytes;
    int64_t dims;
    int64_t numel;
    void* block;  /* the allocation of a required tensor; NULL if it has none of its own */
    size_t guard; /* bytes of it in front of the storage, and as many behind */
    const struct diopiTensor* crow_indices; /* set for a sparse tensor */
    const struct diopiTensor* col_indices;
    const struct diopiTensor* values;
    int64_t numbers[]; /* shape, then strides */
};

struct diopiContext {
    uint32_t mark;
    diopiMachine* machine;
    diopiTensorHandle_t* owned;
    size_t count, capacity;
    void* function;     /* what the guarded call of an operator calls (guard.cpp) */
    char thrown[512];   /* what the exception said that the function let out; empty if there was none */
};

struct diopiGenerator {
    uint32_t mark;
    diopiMachine* machine;
    unsigned char* state;
    size_t bytes;
    uint64_t seed, offset;
};

/* Bytes of one element; 0 for a code that is no dtype. */
int64_t direct_element_size(int dtype);
/* Elements between the first and the last one of this geometry; negative if it is absurd (negative, overflowing). */
int64_t direct_extent(int64_t dims, const int64_t* shape, const int64_t* stride);
/* Elements; negative if absurd. */
int64_t direct_numel(int64_t dims, const int64_t* shape);
int direct_fail(const char* text);
/* Gives memory back that the context of this machine had allocated. */
void direct_release(diopiMachine* machine, diopiDevice_t device, void* block);

static inline bool is_tensor(const struct diopiTensor* th) { return th && th->mark == MARK_TENSOR; }
static inline bool is_context(const struct diopiContext* ctx) { return ctx && ctx->mark == MARK_CONTEXT; }
static inline bool is_generator(const struct diopiGenerator* th) { return th && th->mark == MARK_GENERATOR; }

#endif /* DIOPI_DIRECT_RECORDS_H_ */
