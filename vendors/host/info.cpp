// Who this library is.
#include "kernel.h"

const char* diopiGetVendorName(void) { return "host"; }
const char* diopiGetImplVersion(void) { return "0.1.0"; }
const char* diopiGetLastErrorString(void) { return dipu_host::last_error(); }
