/* What a guarded call asks of its context (guard.cpp). The records are C and stay so. */
#ifndef DIOPI_DIRECT_GUARD_H_
#define DIOPI_DIRECT_GUARD_H_

#include "direct.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The function that was aimed at; NULL if there is none, or no context. */
void* direct_function(diopiContextHandle_t ctx);
/* Of a context: where to write what an exception said, and how many bytes. */
char* direct_thrown(diopiContextHandle_t ctx, size_t* size);

#ifdef __cplusplus
}
#endif
#endif /* DIOPI_DIRECT_GUARD_H_ */
